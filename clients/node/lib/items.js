/** What a subscription yields. Spec: sbus-protocol(7) §5 to §7. */

const CREDENTIALS = '!/cred/([0-9]{1,10})/([0-9]{1,10})/([0-9]{1,10})';
const SENDER = new RegExp(`^!/from/([0-9]{1,20})/((?:${CREDENTIALS}/)*${CREDENTIALS})(?:/((?!!/cred/)[^]+))?$`);
const UNKNOWN_ID = -1;
const DECODER = new TextDecoder('utf-8', { fatal: true });

/** Return bytes as text: UTF-8, or Latin-1 if they are not UTF-8. */
export function toText(bytes) {
  try {
    return DECODER.decode(bytes);
  } catch {
    return bytes.toString('latin1');
  }
}

function isAscii(text) {
  return !/[^\x00-\x7f]/.test(text);
}

/** The publisher of a message, as the bus verifies it. */
export class Sender {
  #publisher;

  constructor(connection, credentials, gid, uid, pid, origin, publisher) {
    this.connection = connection;
    this.credentials = credentials;
    this.gid = gid;
    this.uid = uid;
    this.pid = pid;
    this.origin = origin;
    this.#publisher = publisher;
  }

  /** @internal The uid of the connection, also if it has passed on the message of another author. */
  get _publisher() {
    return this.#publisher;
  }

  /** Return the sender that a `!/from/…` names, or null if it has another form. */
  static parse(name) {
    const found = SENDER.exec(name);
    if (found === null) {
      return null;
    }
    const origin = found[9] ?? null;
    // The publisher's own credentials are the last ones; those before them are the prefix of the bus. The author of a message that was
    // passed on is not a user of this host.
    const [gid, uid, pid] = origin === null ? found.slice(6, 9).map(Number) : [UNKNOWN_ID, UNKNOWN_ID, UNKNOWN_ID];
    return new Sender(Number(found[1]), found[2], gid, uid, pid, origin, Number(found[7]));
  }

  /** Where only this connection receives messages. */
  get address() {
    return `!/conn/${this.connection}/`;
  }
}

/** A message. Its bytes stay in the chunk in which they arrived; what the program does not ask for is not made. */
export class Message {
  #bytes;
  #start;
  #middle;
  #end;
  #name;
  #text = null;
  #payload = null;

  /** The key is at `start` of `bytes`, a NUL at `middle`, and the payload behind it. `name` is the key in Latin-1. */
  constructor(bytes, start, middle, end, name, sender, group) {
    this.#bytes = bytes;
    this.#start = start;
    this.#middle = middle;
    this.#end = end;
    this.#name = name;
    this.sender = sender;
    this.group = group;
  }

  /** The key as text: UTF-8, or Latin-1 if it is not UTF-8. `keyBytes` has its bytes. */
  get key() {
    return (this.#text ??= isAscii(this.#name) ? this.#name : toText(this.keyBytes));
  }

  get keyBytes() {
    return this.#bytes.subarray(this.#start, this.#middle);
  }

  get payload() {
    return (this.#payload ??= this.#bytes.subarray(this.#middle + 1, this.#end));
  }

  /** Return the payload as UTF-8 text. */
  text() {
    return this.#bytes.toString('utf8', Math.min(this.#middle + 1, this.#end), this.#end);
  }

  /** Return the value of the payload, which is JSON. Throws SyntaxError. */
  json() {
    return JSON.parse(this.text());
  }

  /** @internal The number of its bytes. */
  get _size() {
    return this.#end - this.#start;
  }
}

/** Messages are missing at this place: `count` of them, 0 if unknown. `where` is 'bus', or 'client' if this program read too slowly. */
export class Gap {
  constructor(count, where) {
    this.count = count;
    this.where = where;
  }
}

/** `count` queued messages were replaced by newer ones with the same keys. */
export class Replaced {
  constructor(count) {
    this.count = count;
  }
}

/** The client has connected to the bus again. Messages between are missing. */
export class Reconnected {}

/** Calls of services. Spec: sbus-rpc(7) §3 to §5, §7. */

import { later } from './arguments.js';
import { CallTimeout, NoRecipient, PeerDisconnected, RemoteError } from './errors.js';
import { checkCommand, decode, encode, isCommand, PAST } from './envelope.js';
import { MAX_PACKET_BYTES } from './frames.js';
import { toLatin1 } from './patterns.js';
import { PendingCall, PendingStream } from './pending_call.js';

const EMPTY = Buffer.alloc(0);
const ROUNDS = 3;
const MAX_SECONDS = 31_536_000;
/** Times that a call has a service started: it may end before the request arrives. */
const MAX_STARTS = 3;
/** Connections that are asked to start a service: the trigger, and subscribers of root. */
const MAX_TRIGGERS = 8;
/** The beginning of the commands that start services of others. */
const START = 'trigger/start/';
/** Parts on the way: of the largest parts, not quite what the bus queues for a client by default. */
const DEFAULT_WINDOW = 16;
/** Services that are watched although no call waits for them. */
const WATCHED_SERVICES = 1024;

export class Callers {
  #bus;
  #disconnections;
  #address = null; // the key of responses, once the connection is prepared
  #preparing = null;
  #pending = new Map(); // by the uid of the request
  #serving = new Map(); // connections whose end is watched: the commands that each serves, by number
  #unlisted = new Map(); // requests to cancel when the bus has listed their recipients, by uid
  #epoch = 0;

  constructor(bus, disconnections) {
    this.#bus = bus;
    this.#disconnections = disconnections;
  }

  async call(command, data, options) {
    checkCommand(command);
    const { timeout, signal } = options;
    const end = performance.now() + timeout;
    for (let starts = 0; ; starts += 1) {
      try {
        return await this.#callOnce(command, data, { ...options, timeout: remaining(command, timeout, end) });
      } catch (error) {
        throwUnlessUnserved(error, command, timeout, options, starts);
        await this.#startService(error, timeout, end, signal);
      }
    }
  }

  async #callOnce(command, data, options) {
    const { timeout, signal } = options;
    signal?.throwIfAborted();
    const pending = new PendingCall(command, options.connection);
    let timer;
    let onAbort;
    try {
      return await new Promise((resolve, reject) => {
        pending.onDone = (error, response) => (error === null ? resolve(response) : reject(error));
        timer = later(() => this.#giveUp(pending, new CallTimeout(command, timeout, pending.isSent)), timeout);
        if (signal !== undefined) {
          onAbort = () => this.#giveUp(pending, signal.reason);
          signal.addEventListener('abort', onAbort);
        }
        this.#run(pending, data, options).catch((error) => pending.finish(error));
      });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
      this.#pending.delete(pending.uid);
    }
  }

  /** Return an async generator of the parts of a response. The request is sent when the first part is asked for. */
  stream(command, data, options) {
    checkCommand(command);
    return this.#started(command, data, { window: DEFAULT_WINDOW, ...options });
  }

  /** Yield the parts of a response, of a service that is started for it if there is none. */
  async *#started(command, data, options) {
    const { timeout, signal, window } = options;
    const end = performance.now() + timeout;
    for (let starts = 0; ; starts += 1) {
      try {
        yield* this.#parts(new PendingStream(command, options.connection, window), data, options);
        return;
      } catch (error) {
        // It is an error of the request, and not of a stream that has begun.
        throwUnlessUnserved(error, command, timeout, options, starts);
        await this.#startService(error, timeout, end, signal);
      }
    }
  }

  /**
   * Let sbus-trigger start a service for a call that has failed with *error*, which is thrown if that is not possible. Only a trigger of root
   * or of the own user counts. Otherwise any user could make callers wait.
   */
  async #startService(error, timeout, end, signal) {
    const command = START + error.command;
    if (!isCommand(command)) {
      throw error;
    }
    const members = await this.#listedMembers(`rpc/${command}`).catch(() => []);
    const triggers = members.filter(({ uid }) => uid === 0 || uid === process.geteuid()).slice(0, MAX_TRIGGERS);
    for (const { id } of triggers) {
      try {
        await this.#callOnce(command, EMPTY, { connection: id, timeout: remaining(error.command, timeout, end), signal });
        return;
      } catch (problem) {
        if (problem instanceof CallTimeout) {
          throw new CallTimeout(error.command, timeout);
        }
        if (problem instanceof RemoteError) {
          throw new NoRecipient(error.command, problem.text);
        }
        if (problem instanceof PeerDisconnected) {
          throw new NoRecipient(error.command, 'sbus-trigger has disconnected while it started a service');
        }
        if (!(problem instanceof NoRecipient)) {
          throw problem;
        }
        // A mere subscriber.
      }
    }
    throw error;
  }

  async *#parts(stream, data, options) {
    const { signal, timeout } = options;
    signal?.throwIfAborted();
    const onAbort = () => {
      stream.abandon(signal.reason);
      this.#close(stream);
    };
    stream.onChosen = (others) => this.#cancel(stream, others);
    signal?.addEventListener('abort', onAbort);
    try {
      this.#run(stream, data, options).catch((error) => stream.finish(error));
      for (;;) {
        if (!(await stream.wait(timeout))) {
          throw new CallTimeout(stream.command, timeout, stream.isSent);
        }
        const part = stream.take();
        if (part === null) {
          return;
        }
        this.#grant(stream);
        yield part;
      }
    } finally {
      signal?.removeEventListener('abort', onAbort);
      this.#close(stream);
    }
  }

  /** Take a message with a reserved key if it is a response; return whether it is one. */
  take(key, sender, bytes, start, end) {
    if (this.#address === null || !key.startsWith(this.#address)) {
      return false;
    }
    const pending = this.#pending.get(key.slice(this.#address.length));
    if (pending !== undefined && sender !== null) {
      // If a callee sent what is invalid, it is the response, and there will be no other.
      const envelope = decode(bytes, start, end) ?? { uid: pending.uid, err: 'invalid response' };
      if (envelope.uid === pending.uid) {
        pending.respond(sender, envelope);
      }
    }
    return true;
  }

  /** Take a receipt; return whether it is that of a request. */
  takeReceipt(payload) {
    const [token, count, list] = payload.toString('latin1').split('\0');
    if (!token.startsWith('c')) {
      return false;
    }
    const uid = token.slice(1);
    const recipients = list === undefined ? null : list.split(',').map(Number);
    const pending = this.#pending.get(uid);
    if (pending !== undefined) {
      if (count === '0') {
        pending.finish(new NoRecipient(pending.command));
      } else {
        pending.recipients = recipients;
        pending.onReceipt?.(recipients);
      }
    } else if (count !== '0' && this.#unlisted.has(uid)) {
      this.#cancel(this.#unlisted.get(uid), recipients);
    }
    this.#unlisted.delete(uid);
    return true;
  }

  /** Note that the bus has discarded messages: receipts, responses and events of disconnections may be among them. */
  noteLoss() {
    for (const pending of this.#pending.values()) {
      pending.onReceipt?.(null);
      pending.lost();
    }
    for (const uncancelled of this.#unlisted.values()) {
      this.#cancel(uncancelled, null);
    }
    this.#unlisted.clear();
    for (const number of this.#serving.keys()) {
      this.#check(number).catch(() => {});
    }
  }

  /** Fail all calls: the connection has ended. */
  fail(error) {
    this.#epoch += 1;
    this.#address = this.#preparing = null;
    this.#serving.clear();
    this.#unlisted.clear();
    for (const pending of this.#pending.values()) {
      pending.finish(error);
    }
  }

  /** Note that a connection has ended. */
  left(number) {
    this.#serving.delete(number);
    for (const pending of this.#pending.values()) {
      pending.left(number);
    }
  }

  async #run(pending, data, { timeout, context = '' }) {
    const bus = this.#bus;
    const { connection } = pending;
    while (this.#address === null || bus.state !== 'connected') {
      await bus._connected();
      await (this.#preparing ??= this.#prepare());
    }
    if (pending.isDone) {
      return; // it was given up meanwhile
    }
    const epoch = this.#epoch;
    const ret = this.#address + pending.uid;
    const exp = Math.min(Math.max(1, Math.ceil(timeout / 1000)), MAX_SECONDS);
    const envelope = encode({ uid: pending.uid, cmd: pending.command, dat: data, exp, ret, win: pending.window, ctx: context });
    const key = toLatin1(connection === null ? pending.key : `!/conn/${connection}/${pending.key}`);
    if (5 + key.length + envelope.length > MAX_PACKET_BYTES) {
      throw new RangeError(`the request has ${5 + key.length + envelope.length} bytes; a packet has at most ${MAX_PACKET_BYTES}`);
    }
    this.#pending.set(pending.uid, pending);
    if (connection !== null) {
      this.#watch(connection);
    }
    if (connection === null) {
      pending.onReceipt = (recipients) => this.#listed(pending, recipients, epoch);
    }
    bus._send(`CMSG receipt/${connection === null ? 'recipients' : 'undeliverable'}\0c${pending.uid}`);
    bus._send(`MSG ${key}\0${envelope}`);
    pending.isSent = true;
  }

  /** Note the recipients of a request, null if the bus does not list them; only the first time counts. Mostly all are known services. */
  #listed(pending, recipients, epoch) {
    if (pending.isListed) {
      return;
    }
    pending.isListed = true;
    if (recipients?.every((number) => this.#serving.get(number)?.has(pending.key))) {
      pending.called(recipients, []);
    } else {
      this.#identify(pending, recipients, epoch).catch((error) => pending.finish(error));
    }
  }

  /** Let responses arrive with their senders. */
  async #prepare() {
    try {
      const address = (await this.#bus._request('the address', '!/conn/whoami')).toString();
      await this.#bus._wantSenders();
      await this.#bus._confirm('a key for responses', [[`SUB ${address}ret/`, EMPTY]]);
      this.#address = `${address}ret/`;
    } catch (error) {
      this.#preparing = null;
      throw error;
    }
  }

  /** Return the numbers of the connections that get messages with this key. */
  async #members(key) {
    return (await this.#listedMembers(key)).map(({ id }) => id);
  }

  /** Return these connections, each with its number `id` and its `uid`. */
  async #listedMembers(key) {
    const found = [];
    let after = '';
    do {
      const text = toLatin1(key) + after;
      const page = JSON.parse((await this.#bus._request(`the members of ${key}`, '!/bus/members', text)).toString());
      found.push(...page.members.map(({ id, cred }) => ({ id, uid: userOf(cred) })));
      after = page.next === null ? null : `\0${page.next}`;
    } while (after !== null);
    return found;
  }

  /**
   * Find out which of the recipients are services, and whose responses count therefore. If the bus has not listed the recipients, which is
   * null, all members are looked at.
   */
  async #identify(pending, recipients, epoch) {
    const isOver = () => this.#epoch !== epoch || !this.#pending.has(pending.uid);
    if (isOver()) {
      return;
    }
    const serving = new Set();
    const departed = new Set();
    const looked = new Set();
    const rounds = recipients === null ? ROUNDS : 1;
    let candidates = recipients ?? (await this.#members(pending.key));
    for (let round = 0; round < rounds && !isOver(); round += 1) {
      const unknown = candidates.filter((number) => !looked.has(number));
      const unwatched = [];
      for (const number of unknown) {
        looked.add(number);
        if (this.#serving.get(number)?.has(pending.key)) {
          serving.add(number);
        } else {
          unwatched.push(number);
        }
      }
      if (unwatched.length > 0) {
        const found = await Promise.all(unwatched.map((number) => this.#serves(number, pending.key)));
        unwatched.filter((_, place) => found[place]).forEach((number) => serving.add(number));
      }
      if (serving.size > 0) {
        break;
      }
      candidates = await this.#members(pending.key);
      unknown.filter((number) => !candidates.includes(number)).forEach((number) => departed.add(number));
      if (candidates.every((number) => looked.has(number))) {
        break;
      }
    }
    if (isOver()) {
      return;
    }
    for (const number of departed) {
      this.#serving.delete(number);
      this.#disconnections.delete(number, this);
    }
    pending.called(serving, departed);
  }

  /** Watch a connection, and return whether it is a service of a key. The event of its end cannot be missed after that. */
  async #serves(number, key) {
    this.#watch(number);
    const isService = (await this.#members(`!/conn/${number}/${key}`)).length > 0;
    if (isService) {
      this.#serving.get(number)?.add(key);
    }
    return isService;
  }

  #watch(number) {
    if (!this.#serving.has(number)) {
      this.#serving.set(number, new Set());
      this.#disconnections.add(number, this);
      this.#forgetOldest(number);
    }
  }

  /** If too many services are watched besides one, stop watching the first that no call waits for. */
  #forgetOldest(number) {
    if (this.#serving.size > WATCHED_SERVICES) {
      const needed = new Set([...this.#pending.values()].flatMap((each) => [...(each.callees ?? each.recipients ?? [])]));
      const idle = [...this.#serving.keys()].find((each) => each !== number && !needed.has(each));
      if (idle !== undefined) {
        this.#serving.delete(idle);
        this.#disconnections.delete(idle, this);
      }
    }
  }

  /** Ask whether a connection is still there. */
  async #check(number) {
    const keys = new Set([...this.#pending.values()].filter((each) => each.callees?.has(number)).map((each) => each.key));
    for (const key of keys) {
      if ((await this.#members(`!/conn/${number}/${key}`)).length === 0 && !(await this.#members(key)).includes(number)) {
        this.#disconnections.delete(number, this);
        this.left(number);
      }
    }
  }

  /** Let a call fail, and cancel its request. */
  #giveUp(pending, error) {
    if (!pending.isDone) {
      this.#withdraw(pending);
      pending.finish(error);
    }
  }

  /** Forget a stream, and cancel its request if the service may go on. Harmless when that is done. */
  #close(stream) {
    if (this.#pending.get(stream.uid) === stream) {
      if (!stream.isDone || stream.isBroken) {
        this.#withdraw(stream);
      }
      this.#pending.delete(stream.uid);
    }
    stream.finish(null);
  }

  /** Cancel a request at its callees, or at its recipients, as soon as one of these is known. */
  #withdraw(pending) {
    if (!pending.isSent || this.#bus.state !== 'connected') {
      return;
    }
    const known = pending.callees ?? pending.recipients;
    if (known === null && pending.onReceipt !== null) {
      this.#unlisted.set(pending.uid, pending);
    } else {
      this.#cancel(pending, known);
    }
  }

  /** Send messages that cancel a request to connections; null: to the key of the request. */
  #cancel(pending, numbers) {
    const message = encode({ uid: pending.uid, cmd: pending.command, exp: PAST, now: PAST, cancel: 1 });
    const keys = numbers === null ? [pending.key] : [...numbers].map((number) => `!/conn/${number}/${pending.key}`);
    keys.forEach((key) => this.#bus._send(`MSG ${toLatin1(key)}\0${message}`));
  }

  /** Let the service of a stream send more parts, if the program has taken half of them. */
  #grant(stream) {
    const win = stream.nextGrant();
    if (win > 0 && this.#bus.state === 'connected') {
      const message = encode({ uid: stream.uid, cmd: stream.command, exp: PAST, now: PAST, more: 1, win });
      this.#bus._send(`MSG !/conn/${stream.callee.connection}/${toLatin1(stream.key)}\0${message}`);
    }
  }
}

/** Return the user in credentials, such as 1001 of `!/cred/1000/1001/4711`; -1 if they have none. */
function userOf(cred) {
  return Number(/\/([0-9]{1,10})\/[0-9]{1,10}$/.exec(cred)?.[1] ?? -1);
}

/** Return the milliseconds that are left for a call. Throws CallTimeout. */
function remaining(command, timeout, end) {
  const found = end - performance.now();
  if (found <= 0) {
    throw new CallTimeout(command, timeout);
  }
  return found;
}

/** Throw *error*, unless it is that of a command without a service, for which one can be started. */
function throwUnlessUnserved(error, command, timeout, { connection = null }, starts) {
  if (error instanceof CallTimeout) {
    throw new CallTimeout(command, timeout, error.isSent);
  }
  if (!(error instanceof NoRecipient) || connection !== null || starts === MAX_STARTS) {
    throw error;
  }
}

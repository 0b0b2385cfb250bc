/** Services: commands that this program runs for others. Spec: sbus-rpc(7) §7. */

import { checkFunction, shown } from './arguments.js';
import { checkCommand, decode, encode, isExpired } from './envelope.js';
import { ServiceError } from './errors.js';
import { MAX_PACKET_BYTES } from './frames.js';
import { Message } from './items.js';
import { LiveRequests } from './live_requests.js';
import { checkNoArguments } from './options.js';
import { toLatin1 } from './patterns.js';
import { isStream, ServiceStream } from './service_stream.js';
import { Turns } from './turns.js';

const EMPTY = Buffer.alloc(0);
const REMEMBERED_UIDS = 256;
const REMEMBERED_CALLERS = 1024;
const MOST_PER_USER = 256;
const STREAMS_PER_USER = 64;
/** Less than the limit of err: a character that is cut becomes another one, which is longer. */
const MAX_ERROR_BYTES = 4090;
const REMEMBERED_CAUSES = 1024;
const SERVICE_GROUP = 'rpc';

/** A request: `data` are its bytes, and `caller` is the connection that sent it, as the bus verifies it. */
export class Request {
  #cancellation;

  constructor(envelope, caller, cancellation) {
    this.#cancellation = cancellation;
    this.command = envelope.cmd;
    this.data = envelope.dat;
    this.caller = caller;
    this.context = envelope.ctx;
  }

  /** An AbortSignal: aborted when the caller cancels the request or disconnects. */
  get signal() {
    return this.#cancellation.signal;
  }

  text() {
    return this.data.toString();
  }

  json() {
    return JSON.parse(this.text());
  }
}

/** One of the two patterns of a service: in its queue group, or at its own address. */
class Entry {
  constructor(service, pattern, group) {
    this.patterns = [pattern];
    this.group = group;
    this._bytes = [Buffer.from(pattern)];
    this._put = (item) => service._put(item);
  }

  /** @internal */
  _end() {}
}

/** One service. */
export class Service {
  #bus;
  #services;
  #handler;
  #options;
  #running = new Set();
  #streams = new Set();
  #shared; // the requests for all services of the command
  #own = null; // those at its own address

  constructor(bus, services, command, handler, options) {
    this.#bus = bus;
    this.#services = services;
    this.#handler = handler;
    this.#options = options;
    this.command = command;
    this.group = options.group === undefined ? SERVICE_GROUP : options.group;
    this.#shared = new Entry(this, `rpc/${command}`, this.group);
  }

  /** Unsubscribe, end the streams with an error, and wait until the requests that have arrived are answered. */
  async stop() {
    checkNoArguments('stop', arguments.length);
    this.#services._forget(this);
    await this.#bus._drain(this.#shared);
    this.#streams.forEach((each) => each.fail('the service has stopped'));
    await Promise.all(this.#running);
    // Until here callers that wait found it at its address.
    this.#bus._unsubscribe(this.#own);
  }

  /** @internal */
  async _start() {
    const address = (await this.#bus._request('the address', '!/conn/whoami')).toString();
    const what = `the service ${JSON.stringify(this.command)}`;
    const own = (this.#own = new Entry(this, `${address}rpc/${this.command}`, null));
    // At its own address first: otherwise callers could take it for a listener.
    await this.#bus._join(own, what);
    try {
      await this.#bus._join(this.#shared, what);
    } catch (error) {
      this.#bus._unsubscribe(own);
      throw error;
    }
  }

  /** @internal Subscribe again: the address is another one on a new connection. */
  async _restart() {
    this.#bus._forget(this.#own, this.#shared);
    await this._start();
  }

  /** @internal */
  _put(item) {
    if (!(item instanceof Message) || item.sender === null) {
      return;
    }
    const envelope = decode(item.payload);
    const caller = item.sender;
    if (envelope === null || envelope.cmd !== this.command || envelope.err !== '') {
      return;
    }
    // Otherwise a user could let this service write to another client in its name.
    if (envelope.ret !== '' && !envelope.ret.startsWith(caller.address)) {
      return;
    }
    if (envelope.cancel || envelope.more) {
      this.#services.live.follow(envelope, caller.connection);
      return;
    }
    if (this.#services.live.has(caller.connection, envelope.uid) || !this.#services._isNew(caller.connection, envelope.uid)) {
      return;
    }
    const running = this.#run(envelope, caller).finally(() => this.#running.delete(running));
    this.#running.add(running);
  }

  async #run(envelope, caller) {
    const { live } = this.#services;
    let words;
    if (isExpired(envelope)) {
      words = 'the request has expired';
    } else if (!this.#admits(caller)) {
      words = 'the caller may not call this command';
      this.#services._warn('denied', caller, `denied a call of ${JSON.stringify(this.command)} by user ${caller.uid}`);
    } else if (!this.#services.requests.begin(caller.uid)) {
      words = 'busy';
    } else {
      const request = live.add(envelope, caller);
      try {
        await this.#handle(envelope, caller, request);
      } finally {
        live.remove(request);
      }
      return;
    }
    this.#respond(envelope, { err: words });
  }

  /** Run the handler, and respond unless the request is cancelled. */
  async #handle(envelope, caller, request) {
    const { cancellation } = request;
    let response;
    let result;
    try {
      try {
        result = await this.#handler(new Request(envelope, caller, cancellation));
      } finally {
        this.#services.requests.end(caller.uid);
      }
      response = isStream(result) ? await this.#stream(envelope, caller, request, result) : { dat: resultOf(result) };
    } catch (error) {
      if (!cancellation.explains(error)) {
        response = { err: this.#wordsOf(error, caller) };
      }
    }
    if (!cancellation.isSet) {
      this.#respond(envelope, response);
    }
  }

  /** Send the parts of a response, and return its end. */
  async #stream(envelope, caller, request, parts) {
    const { streams } = this.#services;
    const window = envelope.ret === '' || envelope.src ? 0 : envelope.win;
    const isOpen = window > 0 && streams.begin(caller.uid);
    try {
      if (!isOpen) {
        await (parts[Symbol.asyncIterator]?.() ?? parts).return?.();
        throw new ServiceError(
          window > 0
            ? `busy: ${STREAMS_PER_USER} streams of user ${caller.uid} are open`
            : `${this.command} streams its response: call it with stream()`,
        );
      }
      const stream = (request.stream = new ServiceStream(window, request.cancellation));
      this.#streams.add(stream);
      try {
        await stream.run(parts, (part, seq) => {
          if (!this.#respond(envelope, { dat: resultOf(part), seq, more: 1 })) {
            throw new ServiceError('the part is too long for a packet');
          }
          return this.#bus._drained();
        });
      } finally {
        this.#streams.delete(stream);
      }
      return { seq: stream.sent + 1 };
    } finally {
      if (isOpen) {
        streams.end(caller.uid);
      }
    }
  }

  /** Return what the caller is to know about an error of the handler. */
  #wordsOf(error, caller) {
    if (error instanceof ServiceError) {
      return error.message || 'error';
    }
    // The text of another exception may contain what the caller must not know.
    const name = error?.constructor?.name ?? 'Error';
    this.#services._warn(`${this.command} ${name}`, caller, `the handler of ${JSON.stringify(this.command)} failed: ${error?.stack ?? error}`);
    return name;
  }

  /** Send a response, or the error that it is too long; return false if it is too long for a part. */
  #respond(envelope, { dat = EMPTY, err = '', seq = 0, more = 0 }) {
    if (envelope.ret === '' || this.#bus.state !== 'connected') {
      return true;
    }
    const dst = envelope.src ? [envelope.src] : [];
    const words = err === '' ? '' : Buffer.from(err).subarray(0, MAX_ERROR_BYTES).toString();
    const head = `MSG ${toLatin1(envelope.ret)}\0`;
    const message = encode({ uid: envelope.uid, cmd: envelope.cmd, dat, dst, err: words, seq, more });
    if (head.length + message.length <= MAX_PACKET_BYTES) {
      this.#bus._send(head + message);
      return true;
    }
    if (!more) {
      this.#respond(envelope, { err: `response too long: ${dat.length} bytes do not fit into a packet of ${MAX_PACKET_BYTES}` });
    }
    return false;
  }

  #admits(caller) {
    const { users, groups } = this.#options.allow ?? {};
    if (users === undefined && groups === undefined) {
      return true;
    }
    // The author of a message that was passed on is not a user of this host.
    return caller.origin === null && Boolean(users?.includes(caller.uid) || groups?.includes(caller.gid));
  }
}

function resultOf(value) {
  if (value === undefined || value === null) {
    return EMPTY;
  }
  if (typeof value === 'string') {
    return Buffer.from(value);
  }
  if (value instanceof Uint8Array) {
    return value;
  }
  throw new TypeError(`a handler must return a string, a Uint8Array or nothing, not ${shown(value)}`);
}

export class Services {
  #bus;
  #services = new Set();
  #seen = new Map(); // uids of requests by connection, in the order of the last request
  #warned = new Map(); // how often each cause of a warning was there
  requests = new Quota(MOST_PER_USER);
  streams = new Quota(STREAMS_PER_USER);

  constructor(bus, disconnections) {
    this.#bus = bus;
    this.live = new LiveRequests(bus, disconnections);
    this.turns = new Turns(bus);
  }

  async serve(command, handler, options) {
    checkCommand(command);
    checkFunction(handler, 'handler');
    await this.#bus._connectedInTime(`the service ${JSON.stringify(command)}`);
    await this.#bus._wantSenders();
    const service = new Service(this.#bus, this, command, handler, options);
    try {
      await this.turns.begin();
      await service._start();
    } catch (error) {
      this.turns.end();
      throw error;
    }
    this.#services.add(service);
    return service;
  }

  /** Stop all services. */
  async stop() {
    await Promise.all([...this.#services].map((each) => each.stop()));
  }

  /** The connection has ended. */
  fail() {
    this.#seen.clear();
    this.live.fail();
    this.turns.fail();
  }

  /** The address is another one on a new connection. */
  async reconnected() {
    await this.turns.restore().catch((error) => this.#bus._warn(error.message));
    for (const service of this.#services) {
      await service._restart().catch((error) => this.#bus._warn(error.message));
    }
  }

  /** @internal */
  _forget(service) {
    if (this.#services.delete(service)) {
      this.turns.end();
    }
  }

  /** @internal Note the uid of a request; return whether the connection has not used it before. */
  _isNew(connection, uid) {
    const uids = this.#seen.get(connection) ?? new Set();
    this.#seen.delete(connection);
    this.#seen.set(connection, uids);
    if (this.#seen.size > REMEMBERED_CALLERS) {
      this.#seen.delete(this.#seen.keys().next().value);
    }
    if (uids.has(uid)) {
      return false;
    }
    uids.add(uid);
    if (uids.size > REMEMBERED_UIDS) {
      uids.delete(uids.values().next().value);
    }
    return true;
  }

  /** @internal Warn about a caller: for each user the 1st, 2nd, 4th, 8th… time, so that no user can fill the log. */
  _warn(cause, caller, text) {
    const name = `${caller.uid} ${cause}`;
    if (this.#warned.size >= REMEMBERED_CAUSES && !this.#warned.has(name)) {
      this.#warned.clear();
    }
    const count = (this.#warned.get(name) ?? 0) + 1;
    this.#warned.set(name, count);
    if ((count & (count - 1)) === 0) {
      this.#bus._warn(text);
    }
  }
}

/** How many each user has of something, and may have at most. */
class Quota {
  #counts = new Map();
  #most;

  constructor(most) {
    this.#most = most;
  }

  /** Return whether a user may have one more, and count it. */
  begin(uid) {
    const count = this.#counts.get(uid) ?? 0;
    if (count >= this.#most) {
      return false;
    }
    this.#counts.set(uid, count + 1);
    return true;
  }

  /** Note that a user has one less. */
  end(uid) {
    const count = this.#counts.get(uid) - 1;
    if (count > 0) {
      this.#counts.set(uid, count);
    } else {
      this.#counts.delete(uid);
    }
  }
}

/** The client: one connection to the bus. Spec: sbus-protocol(7), sbus-rpc(7). */

import { candidates } from './address.js';
import { isOptions, later, payloadOf } from './arguments.js';
import { Callers } from './calls.js';
import { Disconnections } from './disconnections.js';
import { Disconnected, NoBus, Refused, SbusError, TimedOut } from './errors.js';
import { Exchanges } from './exchanges.js';
import { MAX_PACKET_BYTES } from './frames.js';
import { HeadParser } from './heads.js';
import { Gap, Message, Reconnected, Replaced } from './items.js';
import { Link } from './link.js';
import { checkNoArguments, givenOptions } from './options.js';
import { warnOfMistakes } from './pattern_hints.js';
import { checkPattern, toBytes } from './patterns.js';
import { Routes } from './routes.js';
import { Services } from './services.js';
import { Subscription } from './subscription.js';

const EMPTY = Buffer.alloc(0);
const FIRST_DELAY_MS = 50;
const MOST_DELAY_MS = 5_000;
const REMEMBERED_KEYS = 1024;
const MSG = Buffer.from('MSG ');
const NUL = Buffer.alloc(1);
const TIMEOUT_MS = 30_000;
const NO_OPTIONS = {};
const READY = Promise.resolve();

/** Connect to a bus. Rejects with NoBus if there is none. */
export async function connect(options = {}) {
  const bus = new Bus(options);
  await bus._open();
  return bus;
}

export class Bus {
  #paths;
  #options;
  #link = null;
  #exchanges;
  #routes = new Routes();
  #heads = new HeadParser();
  #keys = new Map(); // the bytes before the payload of a publication, by the key
  #disconnections = new Disconnections(this);
  #callers;
  #services;
  #state = 'reconnecting';
  #whenConnected = null;
  #lastError = null;
  #hasSenders = false;
  #failures = 0;
  #timer = null;
  #receipts = 0;
  #keepsProcess = true;

  constructor(options = {}) {
    this.#options = { reconnect: false, timeout: TIMEOUT_MS, ...givenOptions('connect', options) };
    this.#paths = candidates(this.#options.address);
    this.#hasSenders = Boolean(this.#options.senders);
    this.#exchanges = new Exchanges((head, rest) => this.#link.send(head, rest), (code, text) => this.#refused(code, text));
    this.#callers = new Callers(this, this.#disconnections);
    this.#services = new Services(this, this.#disconnections);
  }

  /** 'connected', 'reconnecting' or 'closed'. */
  get state() {
    return this.#state;
  }

  /**
   * Publish a message. The promise waits while the bus reads more slowly than this program writes.
   * With `receipt` it is the number of recipients, or null if the bus does not tell it; a refusal rejects.
   */
  publish(key, payload = EMPTY, options = NO_OPTIONS) {
    const head = this.#headOf(key);
    const bytes = payloadOf(payload);
    const { receipt } = options === NO_OPTIONS ? options : givenOptions('publish', options);
    if (head.length + bytes.length > MAX_PACKET_BYTES) {
      throw new RangeError(`the message has ${head.length + bytes.length} bytes; a packet has at most ${MAX_PACKET_BYTES}`);
    }
    if (receipt) {
      return this.#publishWithReceipt(head, bytes);
    }
    if (this.#state !== 'connected' || this.#whenConnected !== null) {
      return this._connected().then(() => this.#publish(head, bytes));
    }
    return this.#publish(head, bytes);
  }

  /** Subscribe to patterns. Resolves when the bus has stored them; rejects with Refused. The last argument may be options. */
  async subscribe(...given) {
    const options = givenOptions('subscribe', isOptions(given.at(-1)) ? given.pop() : {});
    const patterns = given.flat();
    if (patterns.length === 0) {
      throw new TypeError('subscribe needs at least one pattern');
    }
    const subscription = new Subscription(this, patterns.map((each) => checkPattern(toBytes(each, 'pattern'))), options);
    warnOfMistakes(subscription.patterns);
    await this._join(subscription, `the subscription to ${subscription.patterns.join(', ')}`);
    return subscription;
  }

  /** Call a service and return its response. See `CallOptions` in index.d.ts. */
  async call(command, data = EMPTY, options = {}) {
    return this.#callers.call(command, payloadOf(data), { timeout: this.#options.timeout, ...givenOptions('call', options) });
  }

  /** Call a service whose response may have parts, and return an async generator of them. See `StreamOptions` in index.d.ts. */
  stream(command, data = EMPTY, options = {}) {
    return this.#callers.stream(command, payloadOf(data), { timeout: this.#options.timeout, ...givenOptions('stream', options) });
  }

  /** Run a service: `handler(request)` returns the response, or an async iterable of its parts. */
  async serve(command, handler, options = {}) {
    return this.#services.serve(command, handler, givenOptions('serve', options));
  }

  /** Return the credentials of this connection, such as `!/cred/1000/1000/4711`. */
  async whoami() {
    checkNoArguments('whoami', arguments.length);
    return (await this._request('the credentials', '!/cred/whoami')).toString();
  }

  /** Wait until the bus has handled everything that was sent before. */
  async ping() {
    checkNoArguments('ping', arguments.length);
    await this._connectedInTime('a ping');
    await this._confirm('a ping', []);
  }

  /** Answer the requests and deliver the messages that have arrived, send everything, and close. */
  async drain() {
    checkNoArguments('drain', arguments.length);
    if (this.#state === 'connected') {
      await this.#services.stop();
      await Promise.all(this.#subscriptions().map((each) => each.drain()));
      await this.ping();
    }
    await this.close();
  }

  /** Send everything, and close. Calls and requests without an answer reject with Disconnected. May be called twice. */
  async close() {
    this.#finish(new Disconnected('it was closed by this program'), { isOwn: true });
    await this.#link?.closed(this.#options.timeout);
  }

  /** Let the process end although the bus is open; what was published is sent first. Returns the bus. */
  unref() {
    this.#keepsProcess = false;
    this.#keepProcess();
    return this;
  }

  /** Undo `unref`. Returns the bus. */
  ref() {
    this.#keepsProcess = true;
    this.#keepProcess();
    return this;
  }

  async [Symbol.asyncDispose ?? Symbol.for('nodejs.asyncDispose')]() {
    await this.close();
  }

  // -- for the other modules

  /** @internal */
  get _timeout() {
    return this.#options.timeout;
  }

  /** @internal Connect for the first time. */
  async _open() {
    this.#begin(await Link.open(this.#paths, this.#options.timeout));
  }

  /** @internal */
  _connected() {
    if (this.#state === 'closed') {
      return Promise.reject(this.#lastError);
    }
    // Whatever follows something that waits has to wait too: messages keep their order.
    if (this.#state === 'connected' && this.#whenConnected === null) {
      return READY;
    }
    this.#whenConnected ??= withResolvers();
    this.#keepProcess();
    return this.#whenConnected.promise;
  }

  /** @internal Wait for the connection as long as `what` may take. */
  async _connectedInTime(what) {
    const connected = this._connected();
    if (connected === READY) {
      return;
    }
    const { timeout } = this.#options;
    let timer;
    const late = new Promise((_, reject) => {
      timer = later(() => reject(new TimedOut(`${what} was not sent, because the client is not connected to the bus`, timeout)), timeout);
    });
    try {
      await Promise.race([connected, late]);
    } finally {
      clearTimeout(timer);
    }
  }

  /** @internal Send a packet whose errors may go to `onRefused`. */
  _send(head, rest = EMPTY) {
    this.#exchanges.noteSent();
    this.#link.send(head, rest);
  }

  /** @internal Wait while the bus reads more slowly than this program writes. */
  _drained() {
    return this.#state === 'connected' && this.#link.isFull ? this.#link.drained() : READY;
  }

  /** @internal */
  _confirm(what, packets) {
    return this.#exchanges.confirm(what, packets, this.#options.timeout);
  }

  /** @internal Send a request to the bus, and return the payload of its response. */
  async _request(what, name, payload = '') {
    await this._connectedInTime(what);
    const packet = [payload === '' ? `CMSG ${name}` : `CMSG ${name}\0${payload}`, EMPTY];
    return this.#exchanges.request(what, [packet], name, '', this.#options.timeout, { isRequest: true });
  }

  /** @internal Ask for the publishers of messages from now on, also after a reconnection. */
  async _wantSenders() {
    if (!this.#hasSenders) {
      this.#hasSenders = true;
      await this._confirm('sender/on', [['CMSG sender/on', EMPTY]]);
    }
  }

  /** @internal Subscribe for what receives messages: a subscription or a service. */
  async _join(route, what) {
    await this._connectedInTime(what);
    this.#routes.add(route);
    try {
      await this._confirm(what, joinPackets(route));
    } catch (error) {
      this._unsubscribe(route);
      throw error;
    }
  }

  /** @internal Forget what an earlier connection was subscribed to. */
  _forget(...routes) {
    routes.forEach((each) => this.#routes.delete(each));
  }

  /** @internal */
  _unsubscribe(subscription) {
    if (this.#routes.delete(subscription) && this.#state === 'connected') {
      for (const [head, rest] of leavePackets(subscription)) {
        this._send(head, rest);
      }
    }
  }

  /** @internal */
  async _drain(subscription) {
    if (this.#state === 'connected') {
      try {
        await this.#services.turns.pause(() => this._confirm('an unsubscription', leavePackets(subscription)));
      } finally {
        this.#routes.delete(subscription);
      }
    } else {
      this.#routes.delete(subscription);
    }
  }

  /** @internal */
  _warn(text) {
    process.emitWarning(text, 'SbusWarning');
  }

  // -- packets

  /** Return what precedes the payload of a message with a key. */
  #headOf(key) {
    let head = this.#keys.get(key);
    if (head === undefined) {
      head = Buffer.concat([MSG, toBytes(key, 'key'), NUL]);
      if (typeof key === 'string') {
        if (this.#keys.size >= REMEMBERED_KEYS) {
          this.#keys.clear();
        }
        this.#keys.set(key, head);
      }
    }
    return head;
  }

  #publish(head, bytes) {
    this._send(head, bytes);
    return this._drained();
  }

  async #publishWithReceipt(head, bytes) {
    await this._connectedInTime('a publication');
    const token = `r${(this.#receipts += 1)}`;
    const packets = [[`CMSG receipt/always\0${token}`, EMPTY], [head, bytes]];
    const answer = await this.#exchanges.request('a publication', packets, '!/bus/receipt', `${token}\0`, this.#options.timeout);
    const [count] = answer.toString('latin1').split('\0'); // a list of recipients may follow
    return count === '-' ? null : Number(count);
  }

  #receive(bytes, start, end) {
    const head = this.#heads.parse(bytes, start, end);
    if (head === null) {
      const found = bytes.indexOf(0, start);
      const stop = found < 0 || found >= end ? end : found;
      this.#control(bytes.toString('latin1', start + 5, stop), bytes.subarray(Math.min(stop + 1, end), end));
      return;
    }
    if (head.isReserved && head.group === null) {
      if (this.#callers.take(head.name, head.sender, bytes, start + head.length, end)) {
        return;
      }
      this.#disconnections.take(head.name); // the program may have subscribed too
    }
    if (head.version !== this.#routes.version) {
      head.targets = this.#routes.find(head.name, head.group);
      head.version = this.#routes.version;
    }
    const { targets } = head;
    if (targets.length > 0) {
      const message = new Message(bytes, start + head.keyStart, start + head.keyEnd, end, head.name, head.sender, head.group);
      for (let place = 0; place < targets.length; place += 1) {
        targets[place]._put(message);
      }
    }
  }

  #control(name, payload) {
    if (name === '!/bus/error') {
      const [said] = payload.toString().split('\0', 1); // the key of a refused message follows
      const [, code, text] = /^(\S*) ?([^]*)$/.exec(said);
      this.#lastError = new Disconnected(`${code} ${text}`, code);
      this.#exchanges.error(code, text);
    } else if (name === '!/bus/lost') {
      this.#callers.noteLoss();
      this.#services.live.noteLoss();
      this.#putAll(() => new Gap(Number(payload), 'bus'));
    } else if (name === '!/bus/replaced') {
      this.#putAll(() => new Replaced(Number(payload)));
    } else if (name !== '!/bus/receipt' || !this.#callers.takeReceipt(payload)) {
      this.#exchanges.answer(name, payload);
    }
  }

  #subscriptions() {
    return [...this.#routes].filter((each) => each instanceof Subscription);
  }

  #putAll(make) {
    for (const subscription of this.#subscriptions()) {
      subscription._put(make());
    }
  }

  #refused(code, text) {
    if (this.#options.onRefused) {
      this.#options.onRefused(code, text);
    } else {
      this._warn(`the bus refused a packet: ${code} ${text}`);
    }
  }

  // -- the connection

  #begin(socket) {
    const link = new Link(socket, (bytes, start, end) => this.#receive(bytes, start, end), (error) => this.#ended(link, error));
    this.#link = link;
    this.#lastError = null;
    this.#state = 'connected';
    this.#keepProcess();
    if (this.#hasSenders) {
      this._send('CMSG sender/on');
    }
    if (this.#options.pace) {
      this._send('CMSG pace/on');
    }
  }

  #ended(link, error) {
    if (link !== this.#link || this.#state === 'closed') {
      return;
    }
    const reason = this.#lastError ?? new Disconnected(error === null ? 'the bus has closed it' : error.message, error?.code);
    if (!this.#options.reconnect) {
      this.#finish(reason);
      return;
    }
    this.#state = 'reconnecting';
    this.#failAll(reason);
    this.#reconnect();
  }

  #reconnect() {
    const delay = Math.min(MOST_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(this.#failures, 10)) * (0.5 + Math.random() / 2);
    this.#timer = setTimeout(() => this.#tryAgain(), this.#failures === 0 ? 0 : delay);
    this.#failures += 1;
    this.#keepProcess();
  }

  /** Keep the process, or let it end; while something waits for a connection, it is kept. */
  #keepProcess() {
    const isKept = this.#keepsProcess || this.#whenConnected !== null;
    this.#link?.keepProcess(isKept);
    this.#timer?.[isKept ? 'ref' : 'unref']();
  }

  async #tryAgain() {
    try {
      const socket = await Link.open(this.#paths, 0);
      if (this.#state === 'closed') {
        socket.destroy();
        return;
      }
      this.#begin(socket);
      // Before anything of this connection is read, so that it precedes the messages after the gap, also if the rest fails.
      this.#putAll(() => new Reconnected());
      await this._confirm('the subscriptions of a new connection', this.#subscriptions().flatMap(joinPackets));
    } catch (error) {
      this.#failedAgain(error);
      return;
    }
    this.#failures = 0;
    this.#services.reconnected();
    this.#whenConnected?.resolve();
    this.#whenConnected = null;
    this.#keepProcess();
  }

  #failedAgain(error) {
    if (error instanceof NoBus && this.#state === 'reconnecting') {
      this.#reconnect();
    } else if (error instanceof TimedOut) {
      this.#link.abort();
    } else if (error instanceof Refused && this.#state === 'connected') {
      // The bus accepted it before; trying again would not change that.
      this.#finish(new Disconnected(error.message, error.code));
    } else if (!(error instanceof SbusError)) {
      this.#finish(error);
    }
  }

  /** Fail everything that the former connection was to answer. */
  #failAll(reason) {
    this.#disconnections.clear();
    this.#exchanges.fail(reason);
    this.#callers.fail(reason);
    this.#services.fail();
  }

  #finish(reason, { isOwn = false } = {}) {
    if (this.#state === 'closed') {
      return;
    }
    this.#state = 'closed';
    this.#lastError = reason;
    clearTimeout(this.#timer);
    this.#link?.end();
    this.#failAll(reason);
    for (const subscription of [...this.#routes]) {
      this.#routes.delete(subscription);
      subscription._end(isOwn ? null : reason);
    }
    this.#whenConnected?.reject(reason);
  }
}

function joinPackets(subscription) {
  const head = subscription.group === null ? 'SUB ' : `CMSG group/join\0${Buffer.from(subscription.group).toString('latin1')}\0`;
  return subscription._bytes.map((pattern) => [head, pattern]);
}

function leavePackets(subscription) {
  const head = subscription.group === null ? 'UNSUB ' : `CMSG group/leave\0${Buffer.from(subscription.group).toString('latin1')}\0`;
  return subscription._bytes.map((pattern) => [head, pattern]);
}

function withResolvers() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  made.promise.catch(() => {}); // it is awaited by those who need it
  return made;
}

/**
 * Which answer of the bus belongs to which packets.
 *
 * The bus handles packets in order, and its errors do not name the packet. So each exchange ends with an answer that is certain to come:
 * that of a request, a receipt, or a ping behind the packets. Errors before that belong to it. Before an exchange another ping ends what
 * was sent without one, so that the error of a publication is not taken for that of a later subscription.
 */

import { later } from './arguments.js';
import { Refused, TimedOut } from './errors.js';

const PING = '!/bus/ping';

export class Exchanges {
  #waiting = [];
  #numbers = 0;
  #isMarked = true; // nothing was sent since the last exchange
  #send;
  #onRefused;

  /** `send(head, rest)` sends a packet; `onRefused(code, text)` gets the errors of packets that belong to no exchange. */
  constructor(send, onRefused) {
    this.#send = send;
    this.#onRefused = onRefused;
  }

  /** Note that a packet was sent whose error may come later. */
  noteSent() {
    this.#isMarked = false;
  }

  /**
   * Send packets, and return a promise of the answer: the payload of the control message `name` that begins with `token`, without it.
   * `what` is in error messages. An error of the bus rejects with Refused.
   */
  request(what, packets, name, token, milliseconds, { isRequest = false } = {}) {
    if (!this.#isMarked) {
      this.#mark();
    }
    return new Promise((resolve, reject) => {
      const exchange = { what, name, token, isRequest, error: null, resolve, reject, timer: null };
      exchange.timer = later(() => this.#fail(exchange, new TimedOut(what, milliseconds)), milliseconds);
      exchange.timer?.unref();
      this.#waiting.push(exchange);
      for (const [head, rest] of packets) {
        this.#send(head, rest);
      }
    });
  }

  /** Send packets that have no answer, and wait until the bus has handled them. */
  async confirm(what, packets, milliseconds) {
    const token = this.#token();
    await this.request(what, [...packets, [`CMSG ${PING}\0${token}`, Buffer.alloc(0)]], PING, token, milliseconds);
  }

  /** Take an answer of the bus; return whether it belongs to an exchange. */
  answer(name, payload) {
    const place = this.#waiting.findIndex(
      (each) => each.name === name && (each.token === '' || payload.subarray(0, each.token.length).toString('latin1') === each.token),
    );
    if (place < 0) {
      return false;
    }
    // Those before it have lost their answers, because the bus refused their pings.
    for (const each of this.#waiting.splice(0, place)) {
      this.#end(each, null);
    }
    const exchange = this.#waiting.shift();
    this.#end(exchange, payload.subarray(exchange.token.length));
    return true;
  }

  /** Take an error of the bus. */
  error(code, text) {
    const exchange = this.#waiting[0];
    if (exchange === undefined || exchange.what === null) {
      this.#onRefused(code, text);
      return;
    }
    exchange.error ??= new Refused(exchange.what, code, text);
    if (exchange.isRequest) {
      this.#waiting.shift();
      this.#end(exchange, null);
    }
  }

  /** Fail everything that waits. */
  fail(error) {
    this.#isMarked = true;
    for (const exchange of this.#waiting.splice(0)) {
      this.#fail(exchange, exchange.error?.withEnd() ?? error);
    }
  }

  #mark() {
    this.#isMarked = true;
    const token = this.#token();
    this.#waiting.push({ what: null, name: PING, token, isRequest: false, error: null, resolve() {}, reject() {}, timer: null });
    this.#send(`CMSG ${PING}\0${token}`, Buffer.alloc(0));
  }

  #token() {
    this.#numbers += 1;
    return `n${this.#numbers};`;
  }

  #end(exchange, payload) {
    clearTimeout(exchange.timer);
    if (exchange.error !== null) {
      exchange.reject(exchange.error);
    } else {
      exchange.resolve(payload);
    }
  }

  #fail(exchange, error) {
    clearTimeout(exchange.timer);
    const place = this.#waiting.indexOf(exchange);
    // It stays in its place, so that errors that come later are still its own.
    if (place >= 0) {
      this.#waiting[place] = { ...exchange, resolve() {}, reject() {} };
    }
    exchange.reject(error);
  }
}

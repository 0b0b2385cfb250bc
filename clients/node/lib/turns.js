/** The order of the messages that the bus has queued for a client that serves. Spec: sbus-protocol(7) §7, "order/fair". */

import { Refused } from './errors.js';

const EMPTY = Buffer.alloc(0);

/** While there are services, the users whose messages are queued take turns. */
export class Turns {
  #bus;
  #services = 0;
  #barriers = 0;
  #isFair = false; // on this connection
  #isKnown = true; // to the bus, which may be an older one

  constructor(bus) {
    this.#bus = bus;
  }

  /** A service begins. If this or the service fails, `end` it. */
  async begin() {
    this.#services += 1;
    await this.restore();
  }

  /** A service ends. */
  end() {
    this.#services -= 1;
    if (this.#services === 0) {
      this.#leave();
    }
  }

  /** Set the order if there are services, also on a new connection. */
  async restore() {
    if (!this.#isDue) {
      return;
    }
    this.#isFair = true;
    try {
      await this.#bus._confirm('order/fair', [['CMSG order/fair', EMPTY]]);
    } catch (error) {
      if (!(error instanceof Refused)) {
        throw error;
      }
      this.#isFair = this.#isKnown = false;
    }
  }

  /** Wait for a barrier: `send` sends it. In this order the bus's answers would precede queued messages, so it is left meanwhile. */
  async pause(send) {
    this.#barriers += 1;
    this.#leave();
    try {
      await send();
    } finally {
      this.#barriers -= 1;
      if (this.#isDue && this.#bus.state === 'connected') {
        this.#isFair = true;
        this.#bus._send('CMSG order/fair');
      }
    }
  }

  /** The connection has ended. */
  fail() {
    this.#isFair = false;
    this.#isKnown = true;
  }

  get #isDue() {
    return this.#services > 0 && this.#barriers === 0 && !this.#isFair && this.#isKnown;
  }

  #leave() {
    if (this.#isFair && this.#bus.state === 'connected') {
      this.#bus._send('CMSG order/queue');
    }
    this.#isFair = false;
  }
}

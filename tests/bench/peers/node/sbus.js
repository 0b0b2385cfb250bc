/** The Node client of this tree; with ':lists', messages are taken in the lists in which they arrive. */

import { setTimeout } from 'node:timers/promises';

import { connect } from '../../../../clients/node/index.js';
import { END } from './work.js';

const KEY = 'bench/load';
const COMMAND = 'bench/echo';

export class Client {
  #address;
  #takesLists;
  #bus;

  constructor(address, variant) {
    this.#address = address;
    this.#takesLists = variant === 'lists';
  }

  /** With `pace`, messages wait for the receiver; otherwise the bus would discard those that it does not read in time. */
  async connect() {
    this.#bus = await connect({ address: this.#address, pace: true });
  }

  publish(payload) {
    return this.#bus.publish(KEY, payload);
  }

  async publishMany(payload, count) {
    for (let left = count; left > 0; left -= 1) {
      await this.#bus.publish(KEY, payload);
    }
  }

  flush() {
    return this.#bus.ping();
  }

  async publishEnd() {
    for (;;) {
      await this.#bus.publish(KEY, END);
      await setTimeout(50);
    }
  }

  subscribe() {
    return this.#bus.subscribe(KEY);
  }

  async receive(tally) {
    const subscription = await this.subscribe();
    tally.ready();
    if (this.#takesLists) {
      for await (const items of subscription.batches()) {
        items.forEach((each) => tally.take(each.payload ?? END));
      }
    } else {
      for await (const message of subscription) {
        tally.take(message.payload);
      }
    }
  }

  serve() {
    return this.#bus.serve(COMMAND, (request) => request.data);
  }

  call(data) {
    return this.#bus.call(COMMAND, data);
  }
}

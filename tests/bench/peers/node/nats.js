/** The package `nats`; with ':callback', messages are taken in a callback, else by iteration. */

import { createRequire } from 'node:module';
import { setTimeout } from 'node:timers/promises';

import { END } from './work.js';

const { connect } = createRequire(new URL('../../build/node/', import.meta.url))('nats');
const SUBJECT = 'bench.load';
const COMMAND = 'bench.echo';

export class Client {
  #port;
  #hasCallback;
  #server;

  constructor(address, variant) {
    this.#port = Number(address);
    this.#hasCallback = variant === 'callback';
  }

  async connect() {
    this.#server = await connect({ servers: `127.0.0.1:${this.#port}` });
  }

  publish(payload) {
    this.#server.publish(SUBJECT, payload);
  }

  /** A flush is the only way to wait for the server: without one the library keeps all messages of a loop. */
  async publishMany(payload, count) {
    for (let left = count; left > 0; left -= 1) {
      this.#server.publish(SUBJECT, payload);
    }
    await this.#server.flush();
  }

  flush() {
    return this.#server.flush();
  }

  async publishEnd() {
    for (;;) {
      this.#server.publish(SUBJECT, END);
      await setTimeout(50);
    }
  }

  async subscribe() {
    const subscription = this.#server.subscribe(SUBJECT);
    await this.#server.flush();
    return subscription[Symbol.asyncIterator]();
  }

  async receive(tally) {
    const callback = this.#hasCallback ? (_error, message) => tally.take(message.data) : undefined;
    const subscription = this.#server.subscribe(SUBJECT, callback && { callback });
    await this.#server.flush();
    tally.ready();
    if (!this.#hasCallback) {
      for await (const message of subscription) {
        tally.take(message.data);
      }
    }
  }

  async serve() {
    this.#server.subscribe(COMMAND, { queue: 'rpc', callback: (_error, message) => message.respond(message.data) });
    await this.#server.flush();
  }

  call(data) {
    return this.#server.request(COMMAND, data, { timeout: 30_000 });
  }
}

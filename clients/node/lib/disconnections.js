/** The connections whose end is watched, for calls and for services: they share one subscription to each event. Spec: sbus-rpc(7) §3, §7. */

const HEAD = '!/event/disconnect/';

export class Disconnections {
  #bus;
  #watchers = new Map(); // by the number of the connection
  #isHidden = false; // a rule of the bus does not let this client know

  constructor(bus) {
    this.#bus = bus;
  }

  /** Call `watcher.left(number)` when a connection ends. The subscription precedes whatever is sent after this. */
  add(number, watcher) {
    const watchers = this.#watchers.get(number);
    if (watchers !== undefined) {
      watchers.add(watcher);
      return;
    }
    this.#watchers.set(number, new Set([watcher]));
    if (!this.#isHidden) {
      this.#bus._confirm(`the subscription to ${HEAD}${number}`, [[`SUB ${HEAD}${number}`, Buffer.alloc(0)]]).catch((error) => this.#failed(error));
    }
  }

  /** Stop watching. Harmless when it is not watched. */
  delete(number, watcher) {
    const watchers = this.#watchers.get(number);
    if (watchers?.delete(watcher) && watchers.size === 0) {
      this.#forget(number);
    }
  }

  /** Handle a message with a reserved key, which may be the event of an end. */
  take(key) {
    if (!key.startsWith(HEAD)) {
      return;
    }
    const number = Number(key.slice(HEAD.length));
    const watchers = this.#watchers.get(number);
    if (watchers !== undefined) {
      this.#forget(number);
      for (const each of watchers) {
        each.left(number);
      }
    }
  }

  /** Forget all: this connection has ended. */
  clear() {
    this.#watchers.clear();
    this.#isHidden = false;
  }

  #forget(number) {
    this.#watchers.delete(number);
    if (!this.#isHidden && this.#bus.state === 'connected') {
      this.#bus._send(`UNSUB ${HEAD}${number}`);
    }
  }

  #failed(error) {
    // A rule is about all of these events. Reported once: other users decide how many connections there are.
    if (error.name === 'Refused' && !this.#isHidden) {
      this.#isHidden = true;
      this.#bus._warn(`calls and services do not notice when other connections end: ${error.message}`);
    }
  }
}

/** Which subscriptions get a message. The bus sends it once, however many patterns of the connection match. */

import { matches } from './patterns.js';

const CACHED_KEYS = 4096;

export class Routes {
  #subscriptions = new Set();
  #cache = new Map();
  /** Changes with the subscriptions. */
  version = 0;

  add(subscription) {
    this.#subscriptions.add(subscription);
    this.#changed();
  }

  delete(subscription) {
    this.#changed();
    return this.#subscriptions.delete(subscription);
  }

  #changed() {
    this.#cache.clear();
    this.version += 1;
  }

  [Symbol.iterator]() {
    return this.#subscriptions.values();
  }

  /** Return the subscriptions with a pattern that matches a key in Latin-1; those of a queue group alone, or those without a group. */
  find(key, group) {
    const name = group === null ? key : `${group}\0${key}`;
    let found = this.#cache.get(name);
    if (found === undefined) {
      found = [...this.#subscriptions].filter(
        (each) => each.group === group && each._bytes.some((pattern) => matches(pattern.toString('latin1'), key)),
      );
      if (this.#cache.size >= CACHED_KEYS) {
        this.#cache.clear();
      }
      this.#cache.set(name, found);
    }
    return found;
  }
}

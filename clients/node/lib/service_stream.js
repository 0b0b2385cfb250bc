/** A response in parts, which a service sends as far as its caller has granted them. Spec: sbus-rpc(7) §7, "Streams". */

import { setImmediate } from 'node:timers/promises';

import { ServiceError } from './errors.js';
import { MAX_WINDOW } from './pending_call.js';

/** Parts between which other work of this program is let in. */
const TURN_PARTS = 16;

/** Return whether the result of a handler is a stream: an async iterable, or a generator. */
export function isStream(result) {
  return (
    typeof result === 'object' &&
    result !== null &&
    (typeof result[Symbol.asyncIterator] === 'function' || (typeof result[Symbol.iterator] === 'function' && typeof result.next === 'function'))
  );
}

export class ServiceStream {
  /** The number of the last part that was sent. */
  sent = 0;
  #granted;
  #cancellation;
  #fault = '';
  #wake = null;

  constructor(window, cancellation) {
    this.#granted = Math.min(window, MAX_WINDOW);
    this.#cancellation = cancellation;
    cancellation.onSet = () => this.#rouse();
  }

  /** Note that the caller accepts the parts up to this number. */
  grant(window) {
    // More than that is ignored: a caller that does not read would lose parts in the bus.
    if (window > this.#granted && window <= this.sent + MAX_WINDOW) {
      this.#granted = window;
      this.#rouse();
    }
  }

  /** End it with an error, at its next part. */
  fail(text) {
    this.#fault ||= text;
    this.#rouse();
  }

  /** Send the parts with `send(part, number)`, which may return a promise. Throws the error that ends it. */
  async run(parts, send) {
    const iterator = parts[Symbol.asyncIterator]?.() ?? parts;
    let isOver = false;
    try {
      while (await this.#mayGoOn()) {
        const step = await this.#next(iterator, () => (isOver = true));
        if (step.done) {
          isOver = true;
          break;
        }
        const part = await step.value;
        if (this.#cancellation.isSet) {
          break;
        }
        this.sent += 1;
        await send(part, this.sent);
        if (this.sent % TURN_PARTS === 0) {
          await setImmediate();
        }
      }
    } finally {
      if (!isOver) {
        await iterator.return?.(); // the handler can tidy up
      }
    }
  }

  async #next(iterator, onError) {
    try {
      return await iterator.next();
    } catch (error) {
      onError();
      throw error;
    }
  }

  /** Wait until the caller accepts another part; return whether it still wants one. Throws ServiceError. */
  async #mayGoOn() {
    for (;;) {
      if (this.#cancellation.isSet) {
        return false;
      }
      if (this.#fault !== '') {
        throw new ServiceError(this.#fault);
      }
      if (this.sent < this.#granted) {
        return true;
      }
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }

  #rouse() {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }
}

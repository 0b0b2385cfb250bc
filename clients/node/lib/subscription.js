/** One subscription: what it has received and the program has not taken. */

import { Gap, Message, Reconnected, toText } from './items.js';
import { checkNoArguments } from './options.js';

const END = { value: undefined, done: true };

const ITEM_BYTES = 256; // what a message takes in memory besides its bytes, by estimate

const OWN_USER = process.geteuid();

/** An async iterable of messages. Ends when it is closed, or drained; throws when the connection ends for good. */
export class Subscription {
  #bus;
  #items = [];
  #next = 0;
  #bytes = 0;
  #foreign = new Map(); // the bytes of each foreign user
  #maxBytes;
  #onGap;
  #wake = null;
  #isOver = false;
  #error = null;

  constructor(bus, patterns, { onGap, maxBytes = 64 << 20, group = null } = {}) {
    this.#bus = bus;
    this.#onGap = onGap;
    this.#maxBytes = maxBytes;
    this._bytes = patterns;
    this.patterns = patterns.map(toText);
    this.group = group;
    this.dropped = 0;
  }

  /** How many messages and gaps wait for the program. */
  get pending() {
    return this.#items.length - this.#next;
  }

  /** Iterate over messages; `onGap` gets everything else. */
  [Symbol.asyncIterator]() {
    return new Iteration(this, (item) => item instanceof Message || this.#report(item));
  }

  /** Iterate over messages, and over Gap, Replaced and Reconnected in their places. */
  items() {
    checkNoArguments('items', arguments.length);
    return new Iteration(this, () => true);
  }

  /** Report what is not a message; return false. */
  #report(item) {
    if (this.#onGap) {
      this.#onGap(item);
    } else {
      const said = item instanceof Gap ? `${item.count || 'some'} messages are missing (${item.where})` : item.constructor.name;
      process.emitWarning(`subscription to ${this.patterns.join(', ')}: ${said}`, 'SbusWarning');
    }
    return false;
  }

  /** Iterate over lists of the items that are there, in order. */
  batches() {
    checkNoArguments('batches', arguments.length);
    return this.#batches();
  }

  async *#batches() {
    try {
      for (;;) {
        const first = await this.next();
        if (first === null) {
          return;
        }
        const items = [first];
        for (let item = this._take(); item !== null; item = this._take()) {
          items.push(item);
        }
        yield items;
      }
    } finally {
      this.close();
    }
  }

  /** Return the next item, or null at the end. Throws the error that has ended the connection. */
  async next() {
    checkNoArguments('next', arguments.length);
    for (;;) {
      const item = this._take();
      if (item !== null) {
        return item;
      }
      if (this.#error !== null) {
        throw this.#error;
      }
      if (this.#isOver) {
        return null;
      }
      await new Promise((resolve) => {
        const before = this.#wake;
        this.#wake = () => {
          before?.();
          resolve();
        };
      });
    }
  }

  /** @internal Return the next item if it is there, else null. */
  _take() {
    const items = this.#items;
    const place = this.#next;
    if (place === items.length) {
      return null;
    }
    const item = items[place];
    this.#charge(item, -sizeOf(item));
    this.#next = place + 1;
    if (this.#next === items.length) {
      this.#items = [];
      this.#next = 0;
    } else {
      items[place] = undefined;
      if (this.#next > 1024 && this.#next * 2 > items.length) {
        this.#items = items.slice(this.#next);
        this.#next = 0;
      }
    }
    return item;
  }

  /** Unsubscribe. Iteration ends at once. */
  close() {
    if (!this.#isOver) {
      this.#items = [];
      this.#next = 0;
      this.#bytes = 0;
      this.#foreign.clear();
      this.#bus._unsubscribe(this);
      this._end();
    }
  }

  /** Unsubscribe, and wait for everything that the bus has sent; iteration yields it and then ends. */
  async drain() {
    checkNoArguments('drain', arguments.length);
    if (!this.#isOver) {
      await this.#bus._drain(this);
      this._end();
    }
  }

  /** @internal */
  _put(item) {
    const size = sizeOf(item);
    if (item instanceof Reconnected && this.#last instanceof Reconnected) {
      return;
    }
    if (item instanceof Message && this.#bytes + this.#bytesOf(item) + size > this.#maxBytes) {
      this.dropped += 1;
      const last = this.#last;
      if (last instanceof Gap && last.where === 'client') {
        last.count += 1;
        return;
      }
      item = new Gap(1, 'client');
    }
    this.#items.push(item);
    this.#charge(item, sizeOf(item));
    if (this.#wake !== null) {
      this.#rouse();
    }
  }

  /** Return the bytes of the foreign user that has sent a message. It may hold at most as much as it leaves free, as in the bus. */
  #bytesOf(message) {
    return this.#foreign.get(foreignUser(message)) ?? 0;
  }

  #charge(item, size) {
    this.#bytes += size;
    const user = foreignUser(item);
    if (user !== null) {
      const bytes = (this.#foreign.get(user) ?? 0) + size;
      if (bytes > 0) {
        this.#foreign.set(user, bytes);
      } else {
        this.#foreign.delete(user);
      }
    }
  }

  /** @internal */
  _end(error = null) {
    if (!this.#isOver) {
      this.#isOver = true;
      this.#error = error;
      this.#rouse();
    }
  }

  get #last() {
    return this.pending ? this.#items[this.#items.length - 1] : null;
  }

  #rouse() {
    const wake = this.#wake;
    this.#wake = null;
    wake?.();
  }
}

/** An iteration that waits only if nothing is there: an async generator would make several promises for each item. */
class Iteration {
  #subscription;
  #isWanted;

  constructor(subscription, isWanted) {
    this.#subscription = subscription;
    this.#isWanted = isWanted;
  }

  next() {
    const item = this.#subscription._take();
    return item instanceof Message ? Promise.resolve({ value: item, done: false }) : this.#waited(item);
  }

  /** Unsubscribe: the program has left the loop. */
  async return() {
    this.#subscription.close();
    return END;
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  async #waited(first) {
    try {
      for (let value = first; ; value = null) {
        value ??= await this.#subscription.next();
        if (value === null) {
          this.#subscription.close();
          return END;
        }
        if (this.#isWanted(value)) {
          return { value, done: false };
        }
      }
    } catch (error) {
      this.#subscription.close();
      throw error;
    }
  }
}

function sizeOf(item) {
  return item instanceof Message ? ITEM_BYTES + item._size : ITEM_BYTES;
}

/** Return the uid of another user that has sent an item, or null: it is known only with `senders`. */
function foreignUser(item) {
  const user = item.sender?._publisher ?? OWN_USER;
  return user === OWN_USER ? null : user;
}

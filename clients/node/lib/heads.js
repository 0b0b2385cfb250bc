/** What precedes the payload of a message: its key, and with some settings its sender and its group. Spec: sbus-protocol(7) §2, §6. */

import { Sender, toText } from './items.js';

const REMEMBERED_SENDERS = 256;
const MSG_BYTES = 4; // 'MSG '
const CMSG_BYTES = 5;
const FIRST_OF_MSG = 0x4d;

/** The head of messages with the same key, from the same sender. All places count from the beginning of the packet. */
class Head {
  /** The subscriptions to its key, while the routes have this version. */
  targets = [];
  version = -1;

  constructor(name, keyStart, keyEnd, length, sender, group) {
    /** Its bytes, if it is remembered. */
    this.bytes = null;
    /** The key in Latin-1. */
    this.name = name;
    this.keyStart = keyStart;
    this.keyEnd = keyEnd;
    /** Where the payload begins. */
    this.length = length;
    this.sender = sender;
    this.group = group;
    this.isReserved = name.startsWith('!');
  }
}

/** Parses heads, and remembers the last one: many messages have the head of the message before. */
export class HeadParser {
  #last = null;
  #senders = new Map(); // by their names

  /** Return the head of the packet at `start` to `end` of `bytes`, or null if it is not a message. */
  parse(bytes, start, end) {
    const last = this.#last;
    if (last !== null && isAt(last.bytes, bytes, start, end)) {
      return last;
    }
    const head = this.#parsed(bytes, start, end);
    if (head !== null && !head.isReserved) {
      head.bytes = Buffer.from(bytes.subarray(start, start + head.length)); // keys of responses do not come again
      this.#last = head;
    }
    return head;
  }

  #parsed(bytes, start, end) {
    let place = start;
    let sender = null;
    let group = null;
    while (bytes[place] !== FIRST_OF_MSG) {
      const stop = bytes.indexOf(0, place);
      if (stop < 0 || stop >= end) {
        return null;
      }
      const name = bytes.toString('latin1', place + CMSG_BYTES, stop);
      if (name.startsWith('!/from/')) {
        sender = this.#senderOf(name);
      } else if (name.startsWith('!/group/')) {
        group = toText(bytes.subarray(place + CMSG_BYTES + '!/group/'.length, stop));
      } else {
        return null;
      }
      place = stop + 1;
    }
    const found = bytes.indexOf(0, place);
    const keyEnd = found < 0 || found > end ? end : found;
    const name = bytes.toString('latin1', place + MSG_BYTES, keyEnd);
    return new Head(name, place + MSG_BYTES - start, keyEnd - start, Math.min(keyEnd + 1, end) - start, sender, group);
  }

  #senderOf(name) {
    let sender = this.#senders.get(name);
    if (sender === undefined) {
      sender = Sender.parse(name);
      if (this.#senders.size >= REMEMBERED_SENDERS) {
        this.#senders.clear();
      }
      this.#senders.set(name, sender);
    }
    return sender;
  }
}

/** Return whether `head` is at `start`. A loop, because it is short, and mostly differs early or not at all. */
function isAt(head, bytes, start, end) {
  const { length } = head;
  if (end - start < length) {
    return false;
  }
  for (let place = 0; place < length; place += 1) {
    if (head[place] !== bytes[start + place]) {
      return false;
    }
  }
  return true;
}

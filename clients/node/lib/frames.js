/** The frames of a stream: each is the length of a packet, 32 bits, little endian, and the packet. Spec: sbus-protocol(7) §1. */

export const LENGTH_BYTES = 4;
/** The largest packet that the bus accepts. */
export const MAX_PACKET_BYTES = 409_600;

/** Takes a stream apart. `onPacket(bytes, start, end)` gets each packet, in a chunk that is not changed afterwards. */
export class FrameReader {
  #onPacket;
  #partial = null; // a frame whose end has not come
  #filled = 0;
  #head = Buffer.alloc(LENGTH_BYTES);
  #headFilled = 0;

  constructor(onPacket) {
    this.#onPacket = onPacket;
  }

  /** Take the packets that are complete with `chunk`, which must not be changed afterwards. */
  feed(chunk) {
    const size = chunk.length;
    let place = this.#partial === null && this.#headFilled === 0 ? 0 : this.#resume(chunk);
    while (size - place >= LENGTH_BYTES) {
      const start = place + LENGTH_BYTES;
      const end = start + (chunk[place] | (chunk[place + 1] << 8) | (chunk[place + 2] << 16)) + chunk[place + 3] * 0x1000000;
      if (end > size) {
        this.#begin(end - start);
        this.#filled = chunk.copy(this.#partial, 0, start);
        return;
      }
      this.#onPacket(chunk, start, end);
      place = end;
    }
    if (place < size) {
      this.#headFilled = chunk.copy(this.#head, 0, place);
    }
  }

  /** Complete the frame that the last chunk began; return where the next one begins. */
  #resume(chunk) {
    let place = 0;
    if (this.#partial === null) {
      place = chunk.copy(this.#head, this.#headFilled);
      this.#headFilled += place;
      if (this.#headFilled < LENGTH_BYTES) {
        return place;
      }
      this.#headFilled = 0;
      this.#begin(this.#head.readUInt32LE(0));
    }
    const count = chunk.copy(this.#partial, this.#filled, place);
    this.#filled += count;
    if (this.#filled === this.#partial.length) {
      const packet = this.#partial;
      this.#partial = null;
      this.#onPacket(packet, 0, packet.length);
    }
    return place + count;
  }

  #begin(length) {
    this.#partial = Buffer.allocUnsafe(length);
    this.#filled = 0;
  }
}

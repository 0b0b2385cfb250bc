/** A connection that sends whatever a test says, to play a peer that does not keep the rules. */

import { once } from 'node:events';
import net from 'node:net';

import { FrameReader } from '../lib/frames.js';

export class RawClient {
  #packets = [];
  #wake = null;

  /** Connect, let messages have their senders, and find out the own address. */
  static async connect(path) {
    const made = new RawClient();
    made.socket = net.connect({ path });
    await once(made.socket, 'connect');
    const reader = new FrameReader((bytes, start, end) => {
      made.#packets.push(bytes.toString('latin1', start, end));
      made.#wake?.();
    });
    made.socket.on('data', (chunk) => reader.feed(chunk));
    made.send('CMSG sender/on');
    made.send('CMSG !/conn/whoami');
    made.address = (await made.take((packet) => packet.startsWith('CMSG !/conn/whoami\0'))).split('\0')[1];
    made.number = Number(made.address.split('/')[2]);
    return made;
  }

  send(packet) {
    const bytes = Buffer.from(packet, 'latin1');
    this.socket.write(Buffer.concat([Buffer.from(Uint32Array.of(bytes.length).buffer), bytes]));
  }

  /** Publish an envelope. */
  post(key, envelope) {
    this.send(`MSG ${key}\0${JSON.stringify({ ver: 1, ...envelope })}`);
  }

  /** Return the first packet for which `is` holds, and forget those before it. */
  async take(is) {
    for (;;) {
      while (this.#packets.length > 0) {
        const packet = this.#packets.shift();
        if (is(packet)) {
          return packet;
        }
      }
      await new Promise((resolve) => (this.#wake = resolve));
    }
  }

  /** Return the next envelope that arrives here, with the number of its sender. */
  async envelope() {
    const packet = await this.take((each) => each.includes('!/from/') && each.endsWith('}'));
    return { sender: Number(/!\/from\/(\d+)/.exec(packet)[1]), ...JSON.parse(packet.slice(packet.indexOf('{'))) };
  }

  /** Wait until the bus has handled everything that was sent. */
  async ping() {
    this.send('CMSG !/bus/ping\0raw');
    await this.take((packet) => packet === 'CMSG !/bus/ping\0raw');
  }

  /** Become a service of a command. */
  async serve(command) {
    this.send(`SUB ${this.address}rpc/${command}`);
    this.send(`CMSG group/join\0rpc\0rpc/${command}`);
    await this.ping();
  }

  close() {
    this.socket.destroy();
  }
}

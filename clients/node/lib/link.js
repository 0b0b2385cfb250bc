/** The socket: frames are gathered within a tick and written together. */

import net from 'node:net';

import { later } from './arguments.js';
import { NoBus } from './errors.js';
import { FrameReader, LENGTH_BYTES } from './frames.js';

const GATHERED_BYTES = 65_536;
/** What precedes packets that are sent as one: their frames follow. Spec: sbus-protocol(7) §6, "Batches". */
const BATCH = Buffer.from('CMSG !/batch\0');
const BATCH_HEAD_BYTES = LENGTH_BYTES + BATCH.length;
/** The pause before another attempt to connect to a bus with a full backlog. */
const ATTEMPT_MS = 10;

/** Open links. Their gathered packets are written also if the program calls process.exit() in the same tick. */
const links = new Set();
process.on('exit', () => links.forEach((each) => each.flush()));

/** One connection. `onPacket(packet)` gets each packet, and `onEnd(error)` the end, once. */
export class Link {
  #socket;
  #gathered = Buffer.allocUnsafe(GATHERED_BYTES);
  #filled = BATCH_HEAD_BYTES;
  #count = 0; // packets that are gathered
  #hasReceipt = false; // whether one of them asks the bus for a receipt
  #isScheduled = false;
  #draining = null;
  #isFull = false;
  #flush = () => {
    this.#isScheduled = false;
    this.flush();
  };

  constructor(socket, onPacket, onEnd) {
    this.#socket = socket;
    const reader = new FrameReader(onPacket);
    let failure = null;
    socket.on('data', (chunk) => reader.feed(chunk));
    socket.on('drain', () => {
      this.#isFull = false;
    });
    socket.on('error', (error) => {
      failure = error;
    });
    socket.on('close', () => {
      links.delete(this);
      onEnd(failure);
    });
    links.add(this);
  }

  /**
   * Return a socket that is connected to the first of these paths that has a bus. A bus whose backlog is full is tried again for this time.
   * Throws NoBus.
   */
  static async open(paths, milliseconds) {
    const end = performance.now() + milliseconds;
    let first = null;
    for (const path of paths) {
      try {
        return await connected(path, end);
      } catch (error) {
        first ??= { error, path };
        // The first error is the most useful one: the second path may be the SEQPACKET socket.
        if (error.code !== 'EPROTOTYPE' && error.code !== 'ENOENT') {
          throw noBus(path, error);
        }
      }
    }
    throw noBus(first.path, first.error);
  }

  /** Add a packet to what is written next. `head` is text in Latin-1 or bytes, `rest` bytes. */
  send(head, rest) {
    const headLength = head.length;
    const length = headLength + rest.length;
    let place = this.#filled;
    if (place + LENGTH_BYTES + length > GATHERED_BYTES) {
      this.flush();
      place = BATCH_HEAD_BYTES;
    }
    if (place + LENGTH_BYTES + length > GATHERED_BYTES) {
      const start = Buffer.allocUnsafe(LENGTH_BYTES + headLength);
      start.writeUInt32LE(length, 0);
      start.set(typeof head === 'string' ? Buffer.from(head, 'latin1') : head, LENGTH_BYTES);
      this.#write(start);
      this.#write(Buffer.from(rest));
      return;
    }
    const gathered = this.#gathered;
    gathered[place] = length;
    gathered[place + 1] = length >>> 8;
    gathered[place + 2] = length >>> 16;
    gathered[place + 3] = 0; // above it is what does not fit here
    place += LENGTH_BYTES;
    if (typeof head === 'string') {
      gathered.write(head, place, 'latin1');
      this.#hasReceipt ||= head.startsWith('CMSG receipt/');
    } else {
      gathered.set(head, place);
    }
    if (rest.length > 0) {
      gathered.set(rest, place + headLength);
    }
    this.#filled = place + length;
    this.#count += 1;
    if (!this.#isScheduled) {
      this.#isScheduled = true;
      process.nextTick(this.#flush);
    }
  }

  /** Write what is gathered. */
  flush() {
    const filled = this.#filled;
    if (this.#count === 0) {
      return;
    }
    let start = BATCH_HEAD_BYTES;
    if (this.#hasReceipt) {
      // The bus sends the receipts of a batch together. Messages alone are faster without: the bus keeps a frame until its end arrives.
      start = 0;
      this.#gathered.writeUInt32LE(filled - LENGTH_BYTES, 0);
      this.#gathered.set(BATCH, LENGTH_BYTES);
    }
    this.#filled = BATCH_HEAD_BYTES;
    this.#count = 0;
    this.#hasReceipt = false;
    if (filled < GATHERED_BYTES / 4) {
      this.#write(Buffer.from(this.#gathered.subarray(start, filled)));
    } else {
      this.#write(this.#gathered.subarray(start, filled));
      this.#gathered = Buffer.allocUnsafe(GATHERED_BYTES);
    }
  }

  #write(bytes) {
    this.#isFull = !this.#socket.write(bytes);
  }

  /** Whether the bus reads more slowly than this program writes. */
  get isFull() {
    return this.#isFull;
  }

  /** Wait until the bus has read what was written, or the connection has ended. All who wait share a promise. */
  drained() {
    this.flush();
    return (this.#draining ??= this.#drain().finally(() => {
      this.#draining = null;
    }));
  }

  async #drain() {
    while (this.isFull && !this.#socket.destroyed) {
      await new Promise((resolve) => {
        const done = () => {
          this.#socket.off('drain', done);
          this.#socket.off('close', done);
          resolve();
        };
        this.#socket.on('drain', done);
        this.#socket.on('close', done);
      });
    }
  }

  /** Write everything, and close. */
  end() {
    this.flush();
    // Not end(): the bus keeps a connection that has only shut down its sending side.
    this.#socket.destroySoon();
  }

  /** Close at once. */
  abort() {
    this.#socket.destroy();
  }

  /** Wait until the connection has ended; after this time, end it. */
  async closed(milliseconds) {
    if (this.#socket.closed) {
      return;
    }
    const timer = later(() => this.abort(), milliseconds);
    await new Promise((resolve) => this.#socket.once('close', resolve));
    clearTimeout(timer);
  }

  /** Let the connection keep the process, or let the process end although there is a connection. */
  keepProcess(isKept) {
    if (!this.#socket.destroyed) {
      this.#socket[isKept ? 'ref' : 'unref']();
    }
  }
}

/** Return a connected socket. A Unix socket with a full backlog is not "in progress": connect(2) fails with EAGAIN. */
async function connected(path, end) {
  for (;;) {
    try {
      return await attempt(path);
    } catch (error) {
      const left = end - performance.now();
      if (error.code !== 'EAGAIN' || left <= 0) {
        throw error;
      }
      await new Promise((resolve) => setTimeout(resolve, Math.min(ATTEMPT_MS, left)));
    }
  }
}

function attempt(path) {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ path });
    socket.once('error', reject);
    socket.once('connect', () => {
      socket.off('error', reject);
      resolve(socket);
    });
  });
}

function noBus(path, error) {
  const shown = JSON.stringify(path.replace(/\0+$/, ''));
  return new NoBus(`cannot connect to the bus at ${shown}: ${REASONS[error.code] ?? error.message}`, error.code);
}

/** The errors of connect(2), in words for users. */
const REASONS = {
  EPROTOTYPE: 'it is the SEQPACKET socket of a bus; enable sbus-stream.socket and restart sbus.service, or start sbusd with --stream-address',
  ENOENT: 'the socket does not exist; enable sbus-stream.socket and restart sbus.service, or start sbusd with --stream-address',
  ECONNREFUSED:
    'no process listens on this socket; start the bus, or if this is a mounted socket file, mount its directory instead: the file was made again',
  EACCES: 'permission denied; check the modes of the socket and of its directory',
  EAGAIN: 'the bus did not accept the connection in time; too many clients are waiting',
};

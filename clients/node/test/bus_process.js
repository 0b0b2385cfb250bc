/** A bus of its own for each test file. $SBUSD is the command that starts sbusd, as a JSON list; default: sbusd. */

import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const COMMAND = JSON.parse(process.env.SBUSD ?? '["sbusd"]');

export class BusProcess {
  /** Start a bus, and wait until it serves. */
  static async start(...options) {
    const folder = await mkdtemp(join(tmpdir(), 'sbus-node-'));
    const made = new BusProcess(folder, options);
    await made.run();
    return made;
  }

  constructor(folder, options) {
    this.folder = folder;
    this.options = options;
    this.packetAddress = join(folder, 'bus.socket');
    this.address = join(folder, 'bus-stream.socket');
  }

  async run() {
    const [program, ...rest] = COMMAND;
    const own = ['-f', '-r', '-a', this.packetAddress, '--stream-address', this.address];
    this.process = spawn(program, [...rest, ...own, ...this.options], { stdio: ['ignore', 'pipe', 'inherit'] });
    this.process.stdout.resume();
    await once(this.process.stdout, 'end'); // it closes its output when it is ready
    if (this.process.exitCode !== null) {
      throw new Error(`sbusd has ended with ${this.process.exitCode}`);
    }
  }

  async end(signal = 'SIGTERM') {
    const ended = once(this.process, 'exit');
    this.process.kill(signal);
    await ended;
  }

  async stop() {
    await this.end();
    await rm(this.folder, { recursive: true });
  }
}

/** Return the next items of a subscription. */
export async function take(subscription, count) {
  const items = [];
  while (items.length < count) {
    items.push(await subscription.next());
  }
  return items;
}

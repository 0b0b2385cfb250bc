/** What the programs of the bench count and measure, and how they say it. */

export const END = Buffer.from('end');
const SILENCE_MILLISECONDS = 5_000;
const nanoseconds = () => Number(process.hrtime.bigint());

export function cpuNanoseconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) * 1000;
}

function say(words) {
  console.log(JSON.stringify(words));
}

/** The messages of a publisher, for some seconds. */
export class Supply {
  #sent = 0;
  #seconds;

  constructor(seconds) {
    this.#seconds = seconds;
  }

  begin() {
    this.beginCpu = cpuNanoseconds();
    this.beginTime = nanoseconds();
    this.end = performance.now() + this.#seconds * 1000;
  }

  wantsMore() {
    return performance.now() < this.end;
  }

  /** Count messages, and return their number. */
  next(count) {
    this.#sent += count;
    return count;
  }

  finish() {
    say({ sent: this.#sent, begin_ns: this.beginTime, cpu_ns: cpuNanoseconds() - this.beginCpu });
  }
}

/** What a receiver counts. */
export class Tally {
  #received = 0;
  #seen = -1;
  #length;
  #beginCpu = 0;

  constructor(length) {
    this.#length = length;
  }

  /** Say that the subscription is in force. The program ends by itself if nothing comes any more. */
  ready() {
    say({});
    this.#beginCpu = cpuNanoseconds();
    setInterval(() => {
      if (this.#received > 0 && this.#received === this.#seen) {
        this.#finish(nanoseconds() - SILENCE_MILLISECONDS * 1e6);
      }
      this.#seen = this.#received;
    }, SILENCE_MILLISECONDS);
  }

  take(payload) {
    if (payload.length === this.#length) {
      this.#received += 1;
    } else {
      this.#finish(nanoseconds());
    }
  }

  #finish(end) {
    say({ received: this.#received, end_ns: end, cpu_ns: cpuNanoseconds() - this.#beginCpu });
    process.exit(0);
  }
}

/** Round trips, behind a tenth of them that is not counted. */
export class Trips {
  #times = [];
  #begin = 0n;

  constructor(count) {
    this.skipped = Math.floor(count / 10);
    this.count = count + this.skipped;
  }

  begin() {
    this.#begin = process.hrtime.bigint();
  }

  end() {
    this.#times.push(Number(process.hrtime.bigint() - this.#begin));
  }

  finish() {
    const times = this.#times.slice(this.skipped).sort((one, other) => one - other);
    say({ p50_ns: times[Math.floor(times.length / 2)], p99_ns: times[Math.floor((times.length * 99) / 100)] });
  }
}

/** Calls, for some seconds twice: those of the first time are not counted. */
export class Calls {
  #done = 0;
  #seconds;

  constructor(seconds) {
    this.#seconds = seconds;
  }

  /** Begin from 0, and say so if it counts. */
  begin(isCounted) {
    if (isCounted) {
      say({});
    }
    this.#done = 0;
    this.beginCpu = cpuNanoseconds();
    this.beginTime = nanoseconds();
    this.end = performance.now() + this.#seconds * 1000;
  }

  wantsMore() {
    return performance.now() < this.end;
  }

  note() {
    this.#done += 1;
  }

  finish() {
    say({ calls: this.#done, wall_ns: nanoseconds() - this.beginTime, cpu_ns: cpuNanoseconds() - this.beginCpu });
  }
}

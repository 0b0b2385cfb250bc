/**
 * `run.js CLIENT ROLE ADDRESS AMOUNT PAYLOAD GROUP`: one program over one client library for Node. It says the same as the programs in Python,
 * see ../clients/run.py: a JSON object a line.
 *
 * ROLE is publish, receive, trip, serve or call. PAYLOAD is the number of bytes of a message. GROUP is how many messages are published
 * before the program waits for the server, 0: as few waits as the library allows, 1: each message leaves alone. Of calls it is how many wait
 * at the same time.
 */

import { setImmediate } from 'node:timers/promises';

import { Calls, Supply, Tally, Trips } from './work.js';

const [client, role, address, amount, payload, group] = process.argv.slice(2);
const [module, variant] = client.split(':');
const work = { publish: Supply, receive: Tally, trip: Trips, call: Calls, serve: Object }[role];
const { Client } = await import(`./${module}.js`);
const made = new Client(address, variant);
const bytes = Buffer.alloc(Number(payload), 'x');

await made.connect();
if (role === 'publish') {
  await publish(new work(Number(amount)), Number(group));
} else if (role === 'receive') {
  await made.receive(new work(bytes.length));
} else if (role === 'trip') {
  await trip(new work(Number(amount)));
} else if (role === 'call') {
  await call(new work(Number(amount)), Number(group));
} else {
  await made.serve();
  console.log('{}');
}

async function publish(supply, count) {
  supply.begin();
  if (count === 0) {
    while (supply.wantsMore()) {
      await made.publishMany(bytes, supply.next(1024));
    }
  } else if (count === 1) {
    while (supply.wantsMore()) {
      for (let left = supply.next(16); left > 0; left -= 1) {
        await made.publish(bytes);
        await setImmediate();
      }
    }
  } else {
    while (supply.wantsMore()) {
      for (let left = supply.next(count); left > 0; left -= 1) {
        made.publish(bytes);
      }
      await made.flush();
    }
  }
  await made.flush();
  supply.finish();
  await made.publishEnd();
}

async function trip(trips) {
  const other = new Client(address, variant);
  await other.connect();
  const messages = await other.subscribe();
  for (let left = trips.count; left > 0; left -= 1) {
    trips.begin();
    made.publish(bytes);
    await messages.next();
    trips.end();
  }
  trips.finish();
  process.exit(0);
}

/** Callers and services run for long, so the first calls, for which Node compiles the library, are not counted. */
async function call(calls, count) {
  const caller = async () => {
    while (calls.wantsMore()) {
      await made.call(bytes);
      calls.note();
    }
  };
  for (const isCounted of [false, true]) {
    calls.begin(isCounted);
    await Promise.all(Array.from({ length: count }, caller));
  }
  calls.finish();
  process.exit(0);
}

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { after, before, test } from 'node:test';

import * as sbus from '../index.js';
import { BusProcess } from './bus_process.js';

const { connect } = sbus;
let bus;

before(async () => {
  bus = await BusProcess.start();
});

after(() => bus.stop());

const WRONG_TYPES = [null, 'x', '5', {}, [], true, 5n, Symbol.iterator];
const NEVER_NUMBERS = [NaN, -1, -Infinity];
const NEVER_COUNTS = [...NEVER_NUMBERS, Infinity, 0.5, 2 ** 53, 1e300];

/** What each number among the options may be: from index.d.ts, so that a new option needs a line here. */
const NUMBERS = {
  ConnectOptions: { timeout: { good: [Infinity, 2_147_483_647, 5_000.5], bad: [...NEVER_NUMBERS, 0, 2_147_483_648, 1e300] } },
  SubscribeOptions: { maxBytes: { good: [Infinity, 1, 2 ** 40], bad: [...NEVER_NUMBERS, 0] } },
  CallOptions: {
    timeout: { good: [Infinity, 2_147_483_647], bad: [...NEVER_NUMBERS, 0, 2_147_483_648, 1e300] },
    connection: { good: [], bad: [...NEVER_COUNTS, 0] },
  },
  StreamOptions: { window: { good: [1, 1_024], bad: [...NEVER_COUNTS, 0, 1_025] } },
  ServeOptions: { users: { good: [], bad: [...NEVER_COUNTS, 2 ** 32] }, groups: { good: [], bad: [...NEVER_COUNTS, 2 ** 32] } },
};

test('every number is checked before anything is sent', async () => {
  const declared = {};
  for (const [, name, body] of (await readFile(new URL('../index.d.ts', import.meta.url), 'utf8')).matchAll(/interface (\w+Options)[^{]*\{([^]*?)\n\}/g)) {
    declared[name] = [...body.matchAll(/(\w+)\?: number/g)].map((found) => found[1]);
  }
  const shape = Object.fromEntries(Object.entries(NUMBERS).map(([name, options]) => [name, Object.keys(options)]));
  assert.deepEqual(shape, declared);

  const one = await connect({ address: bus.address });
  await one.serve('echo', (request) => request.data);
  const next = async (stream) => (await stream.next()).value;
  const uses = {
    ConnectOptions: async (options) => {
      const made = await connect({ address: bus.address, ...options });
      await made.ping();
      await made.close();
    },
    SubscribeOptions: async (options) => (await one.subscribe('a', options)).close(),
    CallOptions: (options) => one.call('echo', 'x', options),
    StreamOptions: async (options) => next(one.stream('echo', 'x', options)),
    ServeOptions: (options) => one.serve('never', () => {}, { allow: Object.fromEntries(Object.entries(options).map(([name, id]) => [name, [id]])) }),
  };
  for (const [name, options] of Object.entries(NUMBERS)) {
    for (const [option, { good, bad }] of Object.entries(options)) {
      for (const value of good) {
        await uses[name]({ [option]: value });
      }
      for (const value of bad) {
        await assert.rejects(uses[name]({ [option]: value }), (error) => error instanceof RangeError && error.message.includes(option.replace(/s$/, '')));
      }
      for (const value of WRONG_TYPES.filter((each) => !(each === null && option === 'connection'))) {
        await assert.rejects(uses[name]({ [option]: value }), TypeError, `${name}.${option} ${String(value)}`);
      }
    }
  }
  await one.close();
});

test('wrong options are type errors', async () => {
  const one = await connect({ address: bus.address });
  for (const allow of [['root'], 'root', 0, { users: 'root' }, { users: ['root'] }, { user: [0] }, { groups: 0 }]) {
    await assert.rejects(one.serve('x', () => {}, { allow }), TypeError);
  }
  await assert.rejects(connect({ onRefused: 'x' }), TypeError);
  await assert.rejects(connect('/run/sbus-stream.socket'), TypeError);
  await assert.rejects(one.subscribe('a', { onGap: 5 }), TypeError);
  await assert.rejects(one.subscribe('a', { group: 5 }), TypeError);
  await assert.rejects(one.call('x', '', 5), TypeError);
  assert.throws(() => one.publish('a', 'x', 5), TypeError);
  assert.throws(() => one.stream('x', '', null), TypeError);
  assert.equal(await one.publish('a', '', { receipt: true }), 0); // it is still connected
  await one.close();
});

test('each error is one of those that index.d.ts names', async () => {
  const text = await readFile(new URL('../index.d.ts', import.meta.url), 'utf8');
  const methods = new Map();
  const body = text.slice(text.indexOf('export class Bus '), text.indexOf('export class Subscription'));
  for (const [, words, name] of body.matchAll(/\/\*\*([^]*?)\*\/\s+(\w+)\(/g)) {
    methods.set(name, words);
  }
  const general = /Every method can reject with (Disconnected)[^]*?(TimedOut)[^]*?(TypeError)[^]*?(RangeError)/.exec(text).slice(1);
  const given = {
    publish: [['!/no', 'x', { receipt: true }], [5], ['a', {}], ['a', Buffer.alloc(500_000)], ['a', 'x', { receipt: true }]],
    subscribe: [[], [5], ['!/no'], ['a'], ['a', { group: '' }], ['!/cred//54321//x']],
    call: [[5], ['none'], ['echo', 5], ['echo', Buffer.alloc(400_000)], ['fails'], ['waits', '', { timeout: 50 }], ['waits', '', { signal: AbortSignal.abort() }]],
    stream: [[5], ['none'], ['echo', '', { window: 0 }], ['fails'], ['waits', '', { timeout: 50 }]],
    serve: [[5], ['x'], ['echo', 5], ['x*', () => {}], ['other', () => {}]],
    whoami: [[]],
    ping: [[]],
    drain: [[]],
    close: [[]],
    unref: [[]],
    ref: [[]],
  };
  assert.deepEqual(Object.keys(given).sort(), [...methods.keys()].sort());

  const own = await BusProcess.start();
  const host = await connect({ address: own.address });
  await host.serve('echo', (request) => request.data);
  await host.serve('fails', () => {
    throw new sbus.ServiceError('no');
  });
  await host.serve('waits', (request) => once(request.signal, 'abort'));
  const isDocumented = (error, name) => {
    const words = methods.get(name);
    for (let kind = error.constructor; kind !== Object && kind !== null; kind = Object.getPrototypeOf(kind)) {
      if (general.includes(kind.name) || new RegExp(`\\b${kind.name}\\b`).test(words)) return true;
    }
    return error.name === 'AbortError' && words.includes('signal');
  };
  const found = new Set();
  const provoke = async (make) => {
    for (const [name, calls] of Object.entries(given)) {
      for (const given of calls) {
        const one = await make();
        try {
          const result = await one[name](...given);
          for await (const _ of name === 'stream' ? result : []);
        } catch (error) {
          found.add(error.constructor.name);
          assert.ok(isDocumented(error, name), `${name}(${given.map(String)}): ${error.stack}`);
        }
        await one.close();
      }
    }
  };
  await provoke(() => connect({ address: own.address }));
  await provoke(async () => {
    const one = await connect({ address: own.address });
    await one.close();
    return one;
  });
  const waiting = [];
  for (let count = Object.values(given).flat().length; count > 0; count -= 1) {
    waiting.push(await connect({ address: own.address, reconnect: true, timeout: 100 }));
  }
  await host.close();
  await own.stop();
  for (const each of waiting) {
    while (each.state === 'connected') await new Promise(setImmediate);
  }
  given.publish = given.publish.filter((each) => each[2]?.receipt); // others wait for the bus, as documented
  await provoke(() => waiting.pop());
  await Promise.all(waiting.map((each) => each.close()));
  const expected = ['CallTimeout', 'Disconnected', 'NoRecipient', 'RangeError', 'Refused', 'RemoteError', 'TimedOut', 'TypeError'];
  assert.deepEqual(expected.filter((name) => !found.has(name)), []);
});

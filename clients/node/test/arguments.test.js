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

/** One value of each type. */
const VALUES = {
  null: null, string: 'x', digits: '5', empty: '', number: 5, bigint: 5n, boolean: true, symbol: Symbol.iterator, object: {}, array: [], function() {},
};
const NEVER_NUMBERS = [NaN, -1, -Infinity];
const NEVER_COUNTS = [...NEVER_NUMBERS, Infinity, 0.5, 2 ** 53, 1e300];
const NEVER_GROUPS = ['', 'a/b', 'a\0b', 'x'.repeat(65), 'é'.repeat(33), '\u2028', '\u00a0', '\ud800'];
const TIMEOUT = { type: 'number', good: [Infinity, 2_147_483_647, 5_000.5], bad: [...NEVER_NUMBERS, 0, 2_147_483_648, 1e300] };
const FLAG = { type: 'boolean', good: [true, false], bad: [] };
const FUNCTION = { type: 'function', good: [() => {}], bad: [] };
const GROUP = { type: 'string', isNull: true, good: [null, 'g', 'two words', 'é'.repeat(32)], bad: NEVER_GROUPS };
const CONTEXT = `00-${'1'.repeat(32)}-${'2'.repeat(16)}-01`;

/** What each option may be; the names are compared with index.d.ts, so that a new option needs a line here. */
const OPTIONS = {
  connect: {
    address: { type: 'string', good: [], bad: ['', '/a\0b'] }, reconnect: FLAG, pace: FLAG, senders: FLAG, timeout: TIMEOUT, onRefused: FUNCTION,
  },
  publish: { receipt: FLAG },
  subscribe: { onGap: FUNCTION, maxBytes: { type: 'number', good: [Infinity, 1, 2 ** 40], bad: [...NEVER_NUMBERS, 0] }, group: GROUP },
  call: {
    timeout: TIMEOUT,
    connection: { type: 'number', isNull: true, good: [null], bad: [...NEVER_COUNTS, 0] },
    context: { type: 'string', good: ['', CONTEXT], bad: ['x', `${CONTEXT}-`, 'x'.repeat(300)] },
    signal: { type: 'AbortSignal', good: [new AbortController().signal], bad: [] },
  },
  stream: { window: { type: 'number', good: [1, 1_024], bad: [...NEVER_COUNTS, 0, 1_025] } },
  serve: {
    allow: {
      type: 'object',
      good: [{ users: [] }, { groups: [0, 2 ** 32 - 1] }, { users: [0], groups: undefined }],
      bad: [
        {}, { users: undefined }, { user: [0] }, { users: 'root' }, { groups: 0 },
        ...[...Object.values(VALUES).filter((value) => typeof value !== 'number'), ...NEVER_COUNTS, 2 ** 32].map((id) => ({ groups: [0, id] })),
      ],
    },
    group: GROUP,
  },
};
Object.assign(OPTIONS.stream, OPTIONS.call); // StreamOptions extends CallOptions

/** Return the bodies of the classes and interfaces of index.d.ts, by name. */
async function declarations() {
  const text = await readFile(new URL('../index.d.ts', import.meta.url), 'utf8');
  return new Map([...text.matchAll(/^export (?:interface|class) (\w+)[^]*?\{\n([^]*?)\n\}/gm)].map(([, name, body]) => [name, body]));
}

test('every option of every function is checked before anything is sent', async () => {
  const declared = {};
  for (const [name, body] of await declarations()) {
    if (name.endsWith('Options')) {
      declared[name.replace('Options', '').toLowerCase()] = [...body.matchAll(/^  (\w+)\?:/gm)].map((found) => found[1]);
    }
  }
  declared.stream.push(...declared.call);
  assert.deepEqual(Object.fromEntries(Object.entries(OPTIONS).map(([name, options]) => [name, Object.keys(options)])), declared);

  const one = await connect({ address: bus.address });
  await one.serve('echo', (request) => request.data);
  const uses = {
    connect: async (options) => {
      const isOne = Object.prototype.toString.call(options) === '[object Object]';
      const made = await connect(isOne && !Object.hasOwn(options, 'address') ? Object.setPrototypeOf({ address: bus.address }, options) : options);
      await made.ping();
      await made.close();
    },
    publish: async (options) => one.publish('none', 'x', options),
    subscribe: async (options) => (await one.subscribe('none', options)).close(),
    call: (options) => one.call('echo', 'x', options),
    stream: async (options) => {
      for await (const part of one.stream('echo', 'x', options)) assert.equal(part.text(), 'x');
    },
    serve: async (options) => (await one.serve('never', () => {}, options)).stop(),
  };
  const refused = async (name, options, words) => {
    const isRight = (error) => (error instanceof TypeError || error instanceof RangeError) && error.message.includes(words);
    await assert.rejects(uses[name](options), isRight, `${name} ${Object.keys(options ?? {})}: ${Object.values(options ?? {}).map(String)}`);
  };
  for (const [name, options] of Object.entries(OPTIONS)) {
    for (const value of [new Map(), ...Object.values(VALUES)].filter((each) => each?.constructor !== Object)) {
      if (name !== 'subscribe') { // there they are patterns
        await refused(name, value, `options of ${name}`);
      }
    }
    for (const unknown of ['tmeout', 'constructor', '__proto__x']) {
      await refused(name, { [unknown]: 5 }, unknown);
      await refused(name, { [unknown]: undefined }, unknown);
    }
    await refused(name, Object.create({ inherited: 5 }), 'inherited');
    for (const [option, { type, isNull = false, good, bad }] of Object.entries(options)) {
      await uses[name]({ [option]: option === 'address' ? bus.address : undefined });
      for (const value of good) {
        await uses[name]({ [option]: value });
      }
      for (const value of [...bad, ...Object.values(VALUES).filter((each) => typeof each !== type && !(each === null && isNull))]) {
        await refused(name, { [option]: value }, option);
      }
    }
  }
  assert.equal(await one.publish('a', '', { receipt: true }), 0); // it is still connected
  await one.close();
});

test('functions without options refuse some', async () => {
  const one = await connect({ address: bus.address });
  const objects = { Bus: one, Subscription: await one.subscribe('none'), Service: await one.serve('none', () => {}) };
  const all = await declarations();
  for (const [name, object] of Object.entries(objects)) {
    for (const [, method] of all.get(name).matchAll(/^  (\w+)\(\): (?:Promise|Async)/gm)) {
      if (method !== 'close') { // it never rejects: it is a handler of events too
        await assert.rejects(async () => object[method]({ timeout: 5 }), new RegExp(`^TypeError: ${method} takes no`));
      }
    }
  }
  await one.ping();
  await one.close();
});

test('texts, handlers and commands are checked', async () => {
  const one = await connect({ address: bus.address });
  const half = '\ud83d';
  for (const text of [half, ...Object.values(VALUES).filter((each) => typeof each !== 'string')]) {
    assert.throws(() => one.publish(text, 'x'), /TypeError: key /);
    assert.throws(() => one.publish('a', text), /TypeError: payload /);
    await assert.rejects(one.call('x', text), /TypeError: payload /);
    assert.throws(() => one.stream('x', text), /TypeError: payload /);
    for (const act of [(command) => one.call(command), async (command) => one.stream(command), (command) => one.serve(command, () => {})]) {
      await assert.rejects(act(text), /TypeError: .*command /);
    }
    if (!Array.isArray(text)) {
      await assert.rejects(one.subscribe(text, {}), /TypeError: pattern /);
    }
    if (typeof text !== 'function') {
      await assert.rejects(one.serve('x', text), /TypeError: handler /);
    }
  }
  await assert.rejects(one.subscribe([], {}), TypeError);
  await one.ping();
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

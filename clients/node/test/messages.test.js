import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { connect, Disconnected, Gap, Message, NoBus, Reconnected, Refused } from '../index.js';
import { BusProcess, take } from './bus_process.js';

let bus;

before(async () => {
  bus = await BusProcess.start();
});

after(() => bus.stop());

function client(options = {}) {
  return connect({ address: bus.address, ...options });
}

test('a message arrives with its key and payload', async () => {
  const one = await client();
  const other = await client();
  const subscription = await one.subscribe('chat/');
  await other.publish('chat/a', 'hello');
  await other.publish('chat/b', new Uint8Array([1, 0, 255]));
  await other.publish('chat/c', '{"x": [1]}');
  const [a, b, c] = await take(subscription, 3);
  assert.deepEqual([a.key, a.text(), a.sender], ['chat/a', 'hello', null]);
  assert.deepEqual([...b.payload], [1, 0, 255]);
  assert.deepEqual(c.json(), { x: [1] });
  await one.close();
  await other.close();
});

test('keys may be any bytes', async () => {
  const one = await client();
  const subscription = await one.subscribe(new Uint8Array([0xff, 0x2f]), 'grün/*');
  await one.publish(new Uint8Array([0xff, 0x2f, 0x61]));
  await one.publish('grün/ß');
  const [bytes, text] = await take(subscription, 2);
  assert.deepEqual([bytes.key, [...bytes.keyBytes]], ['\u00ff/a', [0xff, 0x2f, 0x61]]);
  assert.equal(text.key, 'grün/ß');
  await one.close();
});

test('iteration ends when the subscription or the bus is closed', async () => {
  const one = await client();
  const seen = [];
  const subscription = await one.subscribe(['a', 'b']);
  const loop = (async () => {
    for await (const message of subscription) {
      seen.push(message.key);
      if (seen.length === 3) {
        break;
      }
    }
  })();
  for (const key of ['a', 'b', 'a', 'b']) {
    await one.publish(key);
  }
  await loop;
  assert.deepEqual(seen, ['a', 'b', 'a']);
  assert.equal(await one.publish('a', '', { receipt: true }), 0);
  const second = await one.subscribe('c');
  const rest = second.next();
  await one.close();
  assert.equal(await rest, null);
  assert.equal(one.state, 'closed');
  await assert.rejects(one.publish('a'), Disconnected);
});

test('each subscription gets the messages of its own patterns', async () => {
  const one = await client();
  const [all, some] = [await one.subscribe(''), await one.subscribe('a/*/c/')];
  for (const key of ['a/b/c/', 'a/b/c', 'a/b/c/d/e', 'x']) {
    await one.publish(key);
  }
  assert.deepEqual((await take(all, 4)).map((each) => each.key), ['a/b/c/', 'a/b/c', 'a/b/c/d/e', 'x']);
  assert.deepEqual((await take(some, 2)).map((each) => each.key), ['a/b/c/', 'a/b/c/d/e']);
  assert.equal(some.pending, 0);
  await one.close();
});

test('receipts count recipients and refusals have a code', async () => {
  const refused = [];
  const one = await client({ onRefused: (code, text) => refused.push([code, text]) });
  const other = await client();
  await other.subscribe('a');
  assert.equal(await one.publish('a', 'x', { receipt: true }), 1);
  assert.equal(await one.publish('unused', 'x', { receipt: true }), 0);
  await one.publish('!/bus/no', 'x');
  await assert.rejects(one.publish('!/bus/no', 'x', { receipt: true }), (error) => {
    assert.ok(error instanceof Refused);
    assert.equal(error.code, 'EPERM');
    assert.match(error.text, /reserved|!\//);
    return true;
  });
  assert.equal(await one.publish('a', 'x', { receipt: true }), 1);
  assert.deepEqual(refused.map(([code]) => code), ['EPERM']);
  await one.close();
  await other.close();
});

test('a refused subscription rejects, and the connection goes on', async () => {
  const one = await client({ onRefused: () => assert.fail('the error belongs to the subscription') });
  await assert.rejects(one.subscribe('!/conn/999999/x'), Refused);
  await assert.rejects(one.subscribe('x'.repeat(5_000)), { code: 'EMSGSIZE' });
  await one.ping();
  assert.match(await one.whoami(), new RegExp(`^!/cred/\\d+/${process.getuid()}/${process.pid}$`));
  await one.close();
});

test('publishers are known on request', async () => {
  const one = await client({ senders: true });
  const subscription = await one.subscribe('a');
  const other = await client();
  await other.publish('a', 'x');
  const message = await subscription.next();
  assert.equal(message.sender.uid, process.getuid());
  assert.equal(message.sender.pid, process.pid);
  assert.equal(message.sender.origin, null);
  assert.match(message.sender.address, /^!\/conn\/\d+\/$/);
  await one.close();
  await other.close();
});

test('wrong arguments are errors that name the argument', async () => {
  const one = await client();
  assert.throws(() => one.publish(5), /key must be a string or a Uint8Array, not 5/);
  assert.throws(() => one.publish('a\0b'), /key must not contain NUL/);
  assert.throws(() => one.publish('a', { x: 1 }), /payload must be a string or a Uint8Array, not an object/);
  assert.throws(() => one.publish('a', Buffer.alloc(409_600)), RangeError);
  await assert.rejects(one.subscribe(), /at least one pattern/);
  await assert.rejects(one.subscribe(null), /pattern must be/);
  await one.close();
});

test('a hundred thousand messages arrive in order, small and large', async () => {
  const [one, other] = [await client(), await client()];
  const subscription = await one.subscribe('n/');
  const count = 100_000;
  const sending = (async () => {
    for (let number = 0; number < count; number += 1) {
      await other.publish('n/x', number % 5_000 === 0 ? `${number} ${'x'.repeat(300_000)}` : `${number}`);
      if (number % 1_000 === 0) {
        await other.ping();
      }
    }
  })();
  for (let number = 0; number < count; number += 1) {
    const item = await subscription.next();
    assert.ok(item instanceof Message);
    assert.equal(Number.parseInt(item.text(), 10), number);
  }
  await sending;
  await one.close();
  await other.close();
});

test('lists have all messages in order, and what is between them', async () => {
  const [one, other] = [await client(), await client()];
  const subscription = await one.subscribe('n', { maxBytes: 20_000 });
  const count = 200;
  for (let number = 0; number < count; number += 1) {
    await other.publish('n', `${number} ${'x'.repeat(300)}`);
  }
  await other.ping();
  await one.ping();
  const found = [];
  let missing = 0;
  const lists = [];
  for await (const items of subscription.batches()) {
    lists.push(items.length);
    for (const item of items) {
      if (item instanceof Message) {
        found.push(Number.parseInt(item.text(), 10));
      } else {
        assert.equal(item.where, 'client');
        missing += item.count;
      }
    }
    if (found.length + missing === count) {
      break;
    }
  }
  assert.equal(lists.length, 1);
  assert.ok(missing > 0);
  assert.deepEqual(found, [...Array(found.length).keys()]);
  assert.equal(subscription.pending, 0);
  assert.equal(await subscription.next(), null); // leaving the loop has unsubscribed
  await one.ping(); // the bus has the request to unsubscribe
  assert.equal(await other.publish('n', '', { receipt: true }), 0);
  await Promise.all([one, other].map((each) => each.close()));
});

test('keys, senders and groups may alternate', async () => {
  const [one, other, third] = [await client({ senders: true }), await client(), await client()];
  const plain = await one.subscribe('a', 'ab', 'a/');
  const grouped = await one.subscribe('a', { group: 'g' });
  const expected = [];
  for (let round = 0; round < 4; round += 1) {
    for (const from of [other, other, third]) {
      for (const key of ['a', 'ab', 'ab', 'a/b', 'a/', 'a']) {
        await from.publish(key, `${key} ${from === other}`);
        expected.push(`${key} ${from === other}`);
        await from.ping(); // of two publishers, the order is that of the bus
      }
    }
  }
  await one.ping();
  const numbers = new Map();
  for (const message of await take(plain, expected.length)) {
    const text = expected.shift();
    assert.deepEqual([message.text(), message.key, message.keyBytes.toString()], [text, ...Array(2).fill(text.split(' ')[0])]);
    assert.equal(message.group, null);
    numbers.set(text.split(' ')[1], (numbers.get(text.split(' ')[1]) ?? new Set()).add(message.sender.connection));
  }
  assert.deepEqual([...numbers.values()].map((each) => each.size), [1, 1]);
  assert.notDeepEqual([...numbers.get('true')], [...numbers.get('false')]);
  assert.equal(plain.pending, 0);
  const inGroup = await take(grouped, 24);
  assert.ok(inGroup.every((each) => each.key === 'a' && each.group === 'g' && each.text().startsWith('a ')));
  assert.equal(grouped.pending, 0);
  await Promise.all([one, other, third].map((each) => each.close()));
});

test('a client paces its messages on request, also on a new connection', async () => {
  const own = await BusProcess.start();
  const [paced, usual] = await Promise.all([{ pace: true }, {}].map((each) => connect({ address: own.address, reconnect: true, ...each })));
  const isPaced = async (bus) => {
    const id = Number((await bus._request('the address', '!/conn/whoami')).toString().split('/')[2]);
    const page = JSON.parse((await bus._request('the connections', '!/bus/connections')).toString());
    return Boolean(page.connections.find((each) => each.id === id).pace);
  };
  assert.deepEqual([await isPaced(paced), await isPaced(usual)], [true, false]);
  const subscription = await paced.subscribe('a');
  await own.end('SIGKILL');
  await own.run();
  assert.equal((await subscription.next()).constructor.name, 'Reconnected');
  assert.equal(await isPaced(paced), true);
  await Promise.all([paced, usual].map((each) => each.close()));
  await own.stop();
});

test('messages beyond the bound of a subscription are reported in their place', async () => {
  const one = await client();
  const subscription = await one.subscribe('a', { maxBytes: 10_000 });
  for (let number = 0; number < 100; number += 1) {
    await one.publish('a', Buffer.alloc(1_000));
  }
  await one.ping();
  const kept = subscription.pending - 1;
  const items = await take(subscription, kept + 1);
  assert.ok(items.slice(0, kept).every((each) => each instanceof Message));
  assert.ok(items[kept] instanceof Gap);
  assert.deepEqual([items[kept].count, items[kept].where], [100 - kept, 'client']);
  assert.equal(subscription.dropped, 100 - kept);
  await one.close();
});

test('an error of onGap ends the iteration and the subscription', async () => {
  const one = await client();
  const onGap = (gap) => {
    throw new RangeError(`missing: ${gap.count}`);
  };
  const subscription = await one.subscribe('a', { maxBytes: 1_000, onGap });
  await one.publish('a', 'kept');
  await one.publish('a', Buffer.alloc(2_000));
  await one.ping();
  const messages = subscription[Symbol.asyncIterator]();
  assert.equal((await messages.next()).value.text(), 'kept');
  await assert.rejects(messages.next(), /missing: 1/);
  assert.equal((await messages.next()).done, true);
  assert.equal(await one.publish('a', '', { receipt: true }), 0);
  await one.close();
});

test('drain delivers what was sent, and then ends', async () => {
  const one = await client();
  const subscription = await one.subscribe('a');
  for (let number = 0; number < 50; number += 1) {
    one.publish('a', `${number}`);
  }
  await one.drain();
  const seen = [];
  for await (const message of subscription) {
    seen.push(Number(message.text()));
  }
  assert.deepEqual(seen, [...Array(50).keys()]);
});

test('members of a queue group share messages', async () => {
  const members = [await client(), await client()];
  const subscriptions = await Promise.all(members.map((each) => each.subscribe('jobs/', { group: 'workers' })));
  const everything = await members[0].subscribe('jobs/');
  for (let number = 0; number < 20; number += 1) {
    await members[1].publish(`jobs/${number}`);
  }
  await Promise.all(members.map((each) => each.ping()));
  await Promise.all(members.map((each) => each.ping()));
  assert.equal(subscriptions[0].pending + subscriptions[1].pending, 20);
  assert.equal(everything.pending, 20);
  assert.equal((await take(everything, 1))[0].group, null);
  await Promise.all(members.map((each) => each.close()));
});

test('without a bus, connect says what to do', async () => {
  await assert.rejects(connect({ address: `${bus.folder}/none` }), (error) => error instanceof NoBus && /sbus-stream\.socket/.test(error.message));
  await assert.rejects(connect({ address: bus.packetAddress }), /SEQPACKET/);
});

test('$SBUS_ADDRESS finds the stream socket of the same bus', async () => {
  process.env.SBUS_ADDRESS = bus.packetAddress;
  try {
    const one = await connect();
    await one.ping();
    await one.close();
  } finally {
    delete process.env.SBUS_ADDRESS;
  }
});

test('a client reconnects, subscribes again and says so', async () => {
  const own = await BusProcess.start();
  const one = await connect({ address: own.address, reconnect: true });
  const plain = await connect({ address: own.address });
  const [subscription, lost] = [await one.subscribe('a'), await plain.subscribe('a')];
  await own.end('SIGKILL');
  await assert.rejects(lost.next(), Disconnected);
  while (one.state === 'connected') {
    await new Promise(setImmediate); // its end may be noticed after that of the other one
  }
  const publication = one.publish('a', 'sent later');
  await own.run();
  await publication;
  const [reconnected, message] = await take(subscription, 2);
  assert.ok(reconnected instanceof Reconnected);
  assert.equal(message.text(), 'sent later');
  assert.equal(one.state, 'connected');
  await one.close();
  await own.stop();
});

import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { CallTimeout, connect, Disconnected, Message, Reconnected, Refused, TimedOut } from '../index.js';
import { FrameReader } from '../lib/frames.js';
import { BusProcess, take } from './bus_process.js';

let bus;

before(async () => {
  bus = await BusProcess.start();
});

after(() => bus.stop());

/** A bus whose connections, one after another, are what these functions make of each packet: they return the packets to send, or null to close. */
async function fakeBus(...connections) {
  const folder = await mkdtemp(join(tmpdir(), 'sbus-fake-'));
  const server = net.createServer((socket) => {
    const respond = connections.shift();
    const reader = new FrameReader((bytes, start, end) => {
      const sent = respond(bytes.toString('latin1', start, end));
      for (const each of sent ?? []) {
        const packet = Buffer.from(each);
        socket.write(Buffer.concat([Buffer.from(Uint32Array.of(packet.length).buffer), packet]));
      }
      if (sent === null) {
        socket.end();
      }
    });
    socket.on('data', (chunk) => reader.feed(chunk));
    socket.on('error', () => {});
  });
  server.listen(join(folder, 'bus'));
  await once(server, 'listening');
  return {
    address: join(folder, 'bus'),
    /** Stop listening; the returned function listens again, when the connections have ended. */
    pause: () => {
      const closed = once(server, 'close');
      server.close();
      return async () => {
        await closed;
        server.listen(join(folder, 'bus'));
      };
    },
    stop: async () => {
      server.close();
      await rm(folder, { recursive: true });
    },
  };
}

/** Return a function for `fakeBus` that answers pings; `onSubscribe` is what it sends before anything else when it gets a SUB. */
function plainBus(onSubscribe = [], onPublish = []) {
  return (packet) => {
    if (packet.startsWith('SUB')) return onSubscribe;
    if (packet.startsWith('MSG')) return onPublish;
    return packet.startsWith('CMSG !/bus/ping') ? [packet] : [];
  };
}

const shown = (items) => items.map((item) => (item instanceof Message ? item.text() : item.constructor.name));

test('Reconnected precedes what a new connection brings, also before the subscription is confirmed', async () => {
  const broken = (packet) => (packet.startsWith('SUB') ? ['MSG n/1\0second'] : packet.includes('ping') ? null : []);
  const refuses = plainBus(['MSG n/1\0fourth', 'CMSG !/bus/error\0EPERM a new rule']);
  const fake = await fakeBus(plainBus(['MSG n/1\0first'], null), broken, plainBus(['MSG n/1\0third'], null), refuses);
  const one = await connect({ address: fake.address, reconnect: true });
  const subscription = await one.subscribe('n/');
  await one.publish('x'); // it closes the connection
  assert.deepEqual(shown(await take(subscription, 5)), ['first', 'Reconnected', 'second', 'Reconnected', 'third']);
  await one.publish('x');
  assert.deepEqual(shown(await take(subscription, 2)), ['Reconnected', 'fourth']);
  // What the bus accepted before and refuses now is not subscribed to, and does not look as if it were.
  await assert.rejects(subscription.next(), (error) => error instanceof Disconnected && error.code === 'EPERM' && /a new rule/.test(error.message));
  await fake.stop();
});

test('under traffic, Reconnected stands between the messages before and after the end of a bus', async () => {
  const own = await BusProcess.start();
  const one = await connect({ address: own.address, reconnect: true });
  const subscription = await one.subscribe('n/');
  let isOver = false;
  const publishing = async (mark) => {
    const other = await connect({ address: own.address });
    try {
      while (!isOver) {
        await other.publish('n/x', mark);
        await new Promise(setImmediate);
      }
    } catch (error) {
      assert.ok(error instanceof Disconnected);
    }
    await other.close();
  };
  const first = publishing('before');
  await take(subscription, 50);
  await own.end('SIGKILL');
  await first;
  await own.run();
  const second = publishing('after');
  const seen = [];
  while (seen.at(-1) !== 'after') {
    seen.push(...shown(await take(subscription, 1)));
  }
  isOver = true;
  await second;
  assert.deepEqual(seen.filter((text) => text !== 'before'), ['Reconnected', 'after']);
  assert.equal(seen.at(-2), 'Reconnected');
  await one.close();
  await own.stop();
});

test('a service sets the order of its queue on each connection, before its patterns; a bus that does not know the order is served too', async () => {
  const connections = [];
  const bus = (isKnown) => (packet) => {
    const sent = connections[isKnown ? 1 : 0];
    if (!packet.includes('ping')) {
      sent.push(packet.replace('\0', ' '));
    }
    if (packet.startsWith('CMSG order/') && !isKnown) return ['CMSG !/bus/error\0EOPNOTSUPP unknown'];
    if (packet.startsWith('MSG')) return null;
    return packet.includes('ping') ? [packet] : packet.includes('whoami') ? ['CMSG !/conn/whoami\0!/conn/7/'] : [];
  };
  connections.push([], []);
  const fake = await fakeBus(bus(false), bus(true));
  const one = await connect({ address: fake.address, reconnect: true, onRefused: (_code, text) => assert.fail(text) });
  const service = await one.serve('a', () => '');
  await one.publish('x'); // it closes the connection
  while (!connections[1].some((packet) => packet.startsWith('CMSG group/join'))) {
    await new Promise(setImmediate);
  }
  await service.stop();
  const start = ['CMSG order/fair', 'CMSG !/conn/whoami', 'SUB !/conn/7/rpc/a', 'CMSG group/join rpc\0rpc/a'];
  assert.deepEqual(connections[0], ['CMSG sender/on', ...start, 'MSG x ']);
  assert.deepEqual(connections[1].slice(0, 7), ['CMSG sender/on', ...start, 'CMSG order/queue', 'CMSG group/leave rpc\0rpc/a']);
  await one.close();
  await fake.stop();
});

test('messages that wait for a new connection stay before later ones', async () => {
  const got = [];
  const note = (packet) => {
    if (packet.startsWith('MSG')) got.push(packet.slice(6));
    return packet.includes('ping') ? [packet] : [];
  };
  const fake = await fakeBus((packet) => (packet.startsWith('MSG') ? null : [packet]), note);
  const one = await connect({ address: fake.address, reconnect: true });
  const subscription = await one.subscribe('a');
  const resume = fake.pause();
  await one.publish('a');
  while (one.state === 'connected') await new Promise(setImmediate);
  const sent = [one.publish('a', '0')];
  await resume();
  for (let number = 1; one.state !== 'connected' || number < 20; number += 1) {
    await new Promise(setImmediate);
    sent.push(one.publish('a', String(number)));
  }
  await Promise.all(sent);
  await one.ping();
  assert.deepEqual(got.map(Number), [...sent.keys()]);
  assert.ok((await subscription.next()) instanceof Reconnected);
  await one.close();
  await fake.stop();
});

test('without a connection, a call and a ping say that nothing was sent', async () => {
  const fake = await fakeBus(plainBus([], null));
  const one = await connect({ address: fake.address, reconnect: true, timeout: 3000 });
  fake.pause();
  await one.publish('x'); // it closes the connection
  while (one.state === 'connected') await new Promise(setImmediate);
  const isUnsent = (error) => error.isSent === false && /was not sent/.test(error.message);
  await assert.rejects(one.call('x', '', { timeout: 100 }), (error) => error instanceof CallTimeout && isUnsent(error));
  await assert.rejects(one.ping(), (error) => error instanceof TimedOut && /was not sent/.test(error.message));
  await one.close();
  await fake.stop();
});

test('a refused private key rejects with Refused, and says that the connection has ended', async () => {
  const one = await connect({ address: bus.address });
  const other = await one.subscribe('other/');
  await assert.rejects(one.subscribe('!/cred//54321//x'), (error) => {
    assert.ok(error instanceof Refused);
    assert.equal(error.code, 'EACCES');
    return /the bus has closed the connection/.test(error.message);
  });
  await assert.rejects(other.next(), { code: 'EACCES' });
  const two = await connect({ address: bus.address });
  for (const malformed of ['!/cred/*/0//x', '!/cred/1/2/3', '!/cred/', '!/cred/-1/2/3/x']) {
    await assert.rejects(two.subscribe('a', malformed), TypeError); // it is not sent
  }
  await two.ping();
  await two.close();
});

test('a full backlog is waited for', async () => {
  const own = await BusProcess.start();
  own.process.kill('SIGSTOP');
  const fillers = [];
  for (let isFull = false; !isFull; ) {
    await new Promise((resolve) => {
      const socket = net.connect({ path: own.address });
      socket.on('error', (error) => {
        isFull = error.code === 'EAGAIN';
        resolve();
      });
      socket.on('connect', resolve);
      fillers.push(socket);
    });
  }
  await assert.rejects(connect({ address: own.address, timeout: 30 }), { name: 'NoBus', code: 'EAGAIN' });
  const waiting = Promise.all([connect({ address: own.address }), connect({ address: own.address, timeout: Infinity })]);
  fillers.forEach((each) => each.destroy());
  own.process.kill('SIGCONT');
  await Promise.all((await waiting).map((each) => each.close()));
  await own.stop();
});

test('a process that ends at once or has called unref() loses no message', async () => {
  const one = await connect({ address: bus.address });
  const subscription = await one.subscribe('end/');
  const index = new URL('../index.js', import.meta.url).href;
  const run = (rest) =>
    spawnSync(process.execPath, ['--input-type=module'], {
      input: `import { connect } from '${index}'; const bus = await connect({ address: '${bus.address}' }); ${rest}`,
      encoding: 'utf8',
    });
  const endings = [
    "await bus.publish('end/1', 'exit'); process.exit();",
    "bus.unref(); await bus.publish('end/2', 'unref');",
    "await bus.publish('end/3', 'x'.repeat(300000)); await bus.close(); process.exit();",
    "await using closed = bus; await bus.publish('end/4', 'using');",
  ];
  if (Number(process.versions.node.split('.')[0]) < 24) endings.pop();
  for (const ending of endings) {
    const done = run(ending);
    assert.deepEqual([done.status, done.stderr], [0, ''], ending);
  }
  assert.deepEqual((await take(subscription, endings.length)).map(({ key }) => key), endings.map((_, place) => `end/${place + 1}`));
  await one.close();
});

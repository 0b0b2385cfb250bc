import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import net from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { AnswerLost, connect, Disconnected, Gap, Message, Replaced, TimedOut } from '../index.js';
import { FrameReader } from '../lib/frames.js';

/** A bus that does only what a test says: it answers pings, and sends what it is given. */
const BATCH = 'CMSG !/batch\0';
let folder;
let server;
let sockets;
let answers;
let received = []; // packets of clients, where `answers` keeps them

before(async () => {
  folder = await mkdtemp(join(tmpdir(), 'sbus-node-'));
  sockets = [];
  answers = (packet) => (packet.startsWith('CMSG !/bus/ping') ? [packet] : []);
  server = net.createServer((socket) => {
    sockets.push(socket);
    const reader = new FrameReader((bytes, start, end) => {
      if (bytes.toString('latin1', start, start + BATCH.length) === BATCH) {
        new FrameReader(answer).feed(bytes.subarray(start + BATCH.length, end));
      } else {
        answer(bytes, start, end);
      }
    });
    const answer = (bytes, start, end) => answers(bytes.toString('latin1', start, end)).forEach((each) => send(socket, each));
    socket.on('error', () => {});
    socket.on('data', (chunk) => reader.feed(chunk));
  });
  server.listen(join(folder, 'bus'));
  await once(server, 'listening');
});

after(async () => {
  server.close();
  await rm(folder, { recursive: true });
});

function send(socket, packet) {
  const bytes = Buffer.from(packet, 'latin1');
  socket.write(Buffer.concat([Buffer.from(Uint32Array.of(bytes.length).buffer), bytes]));
}

test('losses and replaced messages are in their places', async () => {
  const bus = await connect({ address: join(folder, 'bus') });
  const seen = [];
  const subscription = await bus.subscribe('a', { onGap: (item) => seen.push(item) });
  for (const packet of ['MSG a\0one', 'CMSG !/bus/lost\x003', 'CMSG !/bus/replaced\x002', 'CMSG !/bus/unknown\0x', 'CMSG !/bus/lost\x000']) {
    send(sockets.at(-1), packet);
  }
  send(sockets.at(-1), 'CMSG !/group/g\0MSG a\0not for this one');
  send(sockets.at(-1), 'CMSG !/from/7/!/cred/1/2/3\0MSG a\0two');
  for await (const message of subscription) {
    seen.push(message);
    if (message.text() === 'two') {
      break;
    }
  }
  assert.deepEqual(seen.map((each) => each.constructor), [Message, Gap, Replaced, Gap, Message]);
  assert.deepEqual([seen[1].count, seen[1].where, seen[2].count, seen[3].count], [3, 'bus', 2, 0]);
  assert.deepEqual([seen[4].sender.connection, seen[4].sender.uid], [7, 2]);
  await bus.close();
});

test('the error of the bus is the reason of the end', async () => {
  const bus = await connect({ address: join(folder, 'bus'), onRefused: () => {} });
  const subscription = await bus.subscribe('a');
  send(sockets.at(-1), 'CMSG !/bus/error\0EACCES user 7 is not admitted');
  sockets.at(-1).end();
  await assert.rejects(subscription.next(), (error) => {
    assert.ok(error instanceof Disconnected);
    assert.equal(error.code, 'EACCES');
    assert.match(error.message, /user 7 is not admitted/);
    return true;
  });
  assert.equal(bus.state, 'closed');
});

test('a bus that does not answer is an error, and later answers find their requests', async () => {
  const bus = await connect({ address: join(folder, 'bus'), timeout: 10_000 });
  const usual = answers;
  answers = () => [];
  await assert.rejects(bus.ping(), TimedOut);
  answers = usual;
  await bus.ping();
  answers = (packet) => (packet.startsWith('MSG') ? ['CMSG !/bus/error\0EPERM no', 'CMSG !/bus/receipt\0r1\x000'] : usual(packet));
  await assert.rejects(bus.publish('a', 'x', { receipt: true }), { code: 'EPERM', text: 'no' });
  answers = usual;
  await bus.close();
});

/** Answer as the bus does to a client that is connection 7 and calls the service on connection 9. */
function asBus(packet) {
  received.push(packet);
  const [name] = packet.split('\0');
  if (name === 'CMSG !/conn/whoami') {
    return ['CMSG !/conn/whoami\0!/conn/7/'];
  }
  if (name === 'CMSG !/bus/members') {
    return ['CMSG !/bus/members\0{"members":[{"id":9}],"next":null}'];
  }
  if (name.startsWith('CMSG receipt/')) {
    return [`CMSG !/bus/receipt\0${packet.split('\0')[1]}\x001\x009`];
  }
  return packet.startsWith('CMSG !/bus/ping') ? [packet] : [];
}

const bodies = (key) => received.filter((each) => each.startsWith(`MSG ${key}\0`)).map((each) => JSON.parse(each.split('\0')[1]));

test('a loss notice fails a stream where it is, and the request is cancelled', async () => {
  const usual = answers;
  received = [];
  answers = (packet) => {
    const found = asBus(packet);
    if (packet.startsWith('MSG rpc/rows\0')) {
      const { uid, ret } = JSON.parse(packet.split('\0')[1]);
      found.push(`CMSG !/from/9/!/cred/1/2/3\0MSG ${ret}\0${JSON.stringify({ ver: 1, uid, cmd: 'rows', dat: 'b25l', seq: 1, more: 1 })}`);
    }
    return found;
  };
  const bus = await connect({ address: join(folder, 'bus') });
  const stream = bus.stream('rows');
  assert.equal((await stream.next()).value.text(), 'one');
  send(sockets.at(-1), 'CMSG !/bus/lost\x001');
  await assert.rejects(stream.next(), (error) => error instanceof AnswerLost && error.code === 'ENOBUFS' && /part 2 /.test(error.message));
  await bus.ping();
  assert.deepEqual(bodies('!/conn/9/rpc/rows').filter((each) => each.cancel).map((each) => [each.exp, each.now]), [[1, 1]]);
  answers = usual;
  await bus.close();
});

test('a service that loses messages ends its streams with an error', async () => {
  const usual = answers;
  received = [];
  answers = asBus;
  const bus = await connect({ address: join(folder, 'bus') });
  await bus.serve('rows', function* () {
    for (;;) {
      yield 'x';
    }
  });
  const request = { ver: 1, uid: 'u', cmd: 'rows', ret: '!/conn/9/ret/u', win: 2 };
  send(sockets.at(-1), `CMSG !/group/rpc\0CMSG !/from/9/!/cred/1/2/3\0MSG rpc/rows\0${JSON.stringify(request)}`);
  while (bodies(request.ret).length < 2) {
    await bus.ping();
  }
  send(sockets.at(-1), 'CMSG !/bus/lost\x001');
  while (bodies(request.ret).length < 3) {
    await bus.ping();
  }
  assert.deepEqual(bodies(request.ret).map((each) => [each.seq, each.more, each.err]), [
    [1, 1, ''], [2, 1, ''], [undefined, undefined, 'the bus discarded messages to the service'],
  ]);
  answers = usual;
  await bus.close();
});

test('a rule that hides the end of other connections is reported once, and calls go on', async () => {
  const usual = answers;
  const warned = [];
  const note = (warning) => warned.push(warning.message);
  process.on('warning', note);
  received = [];
  answers = (packet) => {
    const found = asBus(packet);
    if (packet.startsWith('SUB !/event/disconnect/')) {
      found.push('CMSG !/bus/error\0EACCES not for you');
    }
    const command = /^MSG rpc\/(\w+)\0/.exec(packet)?.[1];
    if (command !== undefined) {
      const { uid, ret } = JSON.parse(packet.split('\0')[1]);
      found.push(`CMSG !/from/9/!/cred/1/2/3\0MSG ${ret}\0${JSON.stringify({ ver: 1, uid, cmd: command, dat: 'b25l' })}`);
    }
    return found;
  };
  const bus = await connect({ address: join(folder, 'bus'), onRefused: () => assert.fail('it belongs to the subscription') });
  for (const command of ['one', 'other', 'one']) {
    assert.equal((await bus.call(command)).text(), 'one');
  }
  await bus.ping();
  await new Promise(setImmediate);
  assert.equal(warned.length, 1, warned.join());
  assert.match(warned[0], /do not notice when other connections end: .*EACCES not for you/);
  process.off('warning', note);
  answers = usual;
  await bus.close();
});

test('a caller stops watching services that it no longer calls, if they are many', async () => {
  const usual = answers;
  received = [];
  answers = (packet) => {
    const found = asBus(packet);
    const number = /^MSG !\/conn\/(\d+)\/rpc\/one\0/.exec(packet)?.[1];
    if (number !== undefined) {
      const { uid, ret } = JSON.parse(packet.split('\0')[1]);
      found.push(`CMSG !/from/${number}/!/cred/1/2/3\0MSG ${ret}\0${JSON.stringify({ ver: 1, uid, cmd: 'one' })}`);
    }
    return found;
  };
  const bus = await connect({ address: join(folder, 'bus') });
  const count = (head) => received.filter((each) => each.startsWith(`${head} !/event/disconnect/`)).length;
  for (let number = 1; number <= 1030; number += 1) {
    await bus.call('one', '', { connection: number });
  }
  await bus.ping();
  assert.deepEqual([count('SUB'), count('UNSUB')], [1030, 6]);
  answers = usual;
  await bus.close();
});

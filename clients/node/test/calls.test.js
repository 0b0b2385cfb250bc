import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { CallTimeout, connect, NoRecipient, PeerDisconnected, RemoteError, ServiceError } from '../index.js';
import { BusProcess } from './bus_process.js';

let bus;
let caller;
let host;

before(async () => {
  bus = await BusProcess.start();
  caller = await connect({ address: bus.address });
  host = await connect({ address: bus.address });
});

after(async () => {
  await caller.close();
  await host.close();
  await bus.stop();
});

test('a call has the result of the service', async () => {
  const service = await host.serve('add', (request) => {
    const [a, b] = request.json();
    assert.equal(request.caller.uid, process.getuid());
    return JSON.stringify(a + b);
  });
  const response = await caller.call('add', '[2, 3]');
  assert.equal(response.json(), 5);
  assert.equal(response.callee.pid, process.pid);
  const many = await Promise.all([...Array(200).keys()].map((number) => caller.call('add', JSON.stringify([number, 1]))));
  assert.deepEqual(many.map((each) => each.json()), [...Array(200).keys()].map((number) => number + 1));
  assert.equal((await caller.call('add', '[1, 1]', { connection: response.callee.connection })).text(), '2');
  await service.stop();
  await assert.rejects(caller.call('add', '[1, 1]'), NoRecipient);
});

test('a service finds the trace context', async () => {
  const context = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
  const service = await host.serve('context', (request) => request.context);
  assert.equal((await caller.call('context', '', { context })).text(), context);
  assert.equal((await caller.call('context')).text(), '');
  for (const wrong of ['x', `${context}-x`, context.toUpperCase(), `ff${context.slice(2)}`, 7]) {
    await assert.rejects(caller.call('context', '', { context: wrong }), TypeError);
  }
  await service.stop();
});

test('errors of handlers reach the caller, their texts only on purpose', async () => {
  const warned = [];
  const note = (warning) => warned.push(warning.message);
  process.on('warning', note);
  const services = [
    await host.serve('chosen', () => {
      throw new ServiceError('no such thing');
    }),
    await host.serve('defect', async () => {
      throw new RangeError('secret');
    }),
    await host.serve('wrong', () => ({})),
  ];
  await assert.rejects(caller.call('chosen'), (error) => error instanceof RemoteError && error.text === 'no such thing');
  await assert.rejects(caller.call('defect'), (error) => error instanceof RemoteError && error.text === 'RangeError');
  await assert.rejects(caller.call('wrong'), { text: 'TypeError' });
  await new Promise(setImmediate);
  assert.ok(warned.some((each) => each.includes('secret')));
  process.off('warning', note);
  await Promise.all(services.map((each) => each.stop()));
});

test('a caller that is not allowed gets an error', async () => {
  const service = await host.serve('mine', () => 'x', { allow: { users: [process.getuid() + 1] } });
  await assert.rejects(caller.call('mine'), /may not call/);
  await service.stop();
});

test('a call of a command that no service runs fails at once', async () => {
  await assert.rejects(caller.call('nothing'), NoRecipient);
  const listener = await host.subscribe('rpc/unread');
  await assert.rejects(caller.call('unread'), NoRecipient);
  listener.close();
});

test('a call fails when its service disconnects, or takes too long', async () => {
  const other = await connect({ address: bus.address });
  let isStarted = false;
  await other.serve('slow', () => {
    isStarted = true;
    return new Promise(() => {});
  });
  // A request that arrives too late is not run.
  for (let timeout = 300; !isStarted; timeout *= 2) {
    await assert.rejects(caller.call('slow', '', { timeout }), CallTimeout);
  }
  const call = caller.call('slow');
  call.catch(() => {});
  await caller.ping();
  await other.ping();
  await other.close();
  await assert.rejects(call, PeerDisconnected);
});

test('services of one user share the calls, unless one runs every call', async () => {
  const others = await Promise.all([1, 2, 3].map(() => connect({ address: bus.address })));
  const ran = [0, 0, 0];
  for (const [place, group] of [[0, undefined], [1, 'rpc'], [2, null]]) {
    await others[place].serve('shared', () => void (ran[place] += 1), { group });
  }
  for (let count = 0; count < 20; count += 1) {
    await caller.call('shared');
  }
  await Promise.all(others.map((each) => each.drain())); // and the requests whose responses came too late
  assert.equal(ran[0] + ran[1], 20);
  assert.ok(ran[0] > 0 && ran[1] > 0);
  assert.equal(ran[2], 20);
  await assert.rejects(caller.call('a'), NoRecipient);
});

test('a call fails when the service that got it ends, although others are there', async () => {
  const others = await Promise.all([1, 2].map(() => connect({ address: bus.address })));
  let chosen;
  let begun;
  for (const each of others) {
    await each.serve('ends', (request) => {
      chosen = each;
      begun();
      return request.text() === 'wait' ? new Promise(() => {}) : request.data;
    });
  }
  const begin = (text) => [new Promise((resolve) => (begun = resolve)), caller.call('ends', text)];
  for (const text of ['a', 'b']) {
    await Promise.all(begin(text)); // the caller knows the services
  }
  const [started, call] = begin('wait');
  await started;
  await Promise.all([assert.rejects(call, PeerDisconnected), chosen.close()]);
  const last = others.find((each) => each !== chosen);
  assert.equal((await begin('still there')[1]).text(), 'still there');
  assert.equal(chosen, last);
  const [again, ended] = begin('wait');
  await again;
  await Promise.all([assert.rejects(ended, PeerDisconnected), last.close()]);
  await assert.rejects(caller.call('ends'), NoRecipient);
});

test('wrong commands and handlers are errors', async () => {
  await assert.rejects(caller.call(''), /invalid command/);
  await assert.rejects(caller.call('a*'), /invalid command/);
  await assert.rejects(caller.call('a', 5), /payload must be/);
  await assert.rejects(host.serve('a'), /handler must be a function/);
});

test('commands and errors may have any printable characters', async () => {
  const service = await host.serve('größe/日本', (request) => {
    throw new ServiceError(`${request.command}: ${'日'.repeat(3_000)}`);
  });
  await assert.rejects(caller.call('größe/日本'), (error) => error instanceof RemoteError && error.text.startsWith('größe/日本: 日日'));
  await service.stop();
});

test('drain answers the requests that have arrived', async () => {
  const other = await connect({ address: bus.address });
  await other.serve('late', async () => {
    await new Promise((resolve) => setTimeout(resolve, 50));
    return 'done';
  });
  const call = caller.call('late');
  await caller.ping();
  await other.drain();
  assert.equal((await call).text(), 'done');
});

test('services are there again after a reconnection', async () => {
  const own = await BusProcess.start();
  const [one, other] = await Promise.all([1, 2].map(() => connect({ address: own.address, reconnect: true })));
  await other.serve('echo', (request) => request.data);
  assert.equal((await one.call('echo', 'before')).text(), 'before');
  await own.end('SIGKILL');
  await own.run();
  for (;;) {
    try {
      assert.equal((await one.call('echo', 'after')).text(), 'after');
      break;
    } catch (error) {
      assert.ok(['ENOENT', 'EPIPE', 'ECLOSED', 'ECONNRESET'].includes(error.code), error);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }
  await one.close();
  await other.close();
  await own.stop();
});

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { after, before, test } from 'node:test';

import { CallTimeout, Cancelled, connect, NoRecipient, PeerDisconnected } from '../index.js';
import { BusProcess } from './bus_process.js';
import { RawClient } from './raw_client.js';

let bus;
let caller;
let host;

before(async () => {
  bus = await BusProcess.start();
  caller = await connect({ address: bus.address });
  await assert.rejects(caller.call('nothing'), NoRecipient); // from now on a request is sent at once
  host = await connect({ address: bus.address });
});

after(async () => {
  await caller.close();
  await host.close();
  await bus.stop();
});

/** Services, of which each request waits for its cancellation: `next()` is the next request of any of them. */
async function waiting(command, hosts = [host]) {
  const arrived = [];
  let wake = null;
  const handler = (request) => {
    arrived.push(request);
    wake?.();
    return new Promise((resolve, reject) => request.signal.addEventListener('abort', () => reject(request.signal.reason)));
  };
  const services = await Promise.all(hosts.map((each) => each.serve(command, handler)));
  const next = async () => {
    while (arrived.length === 0) {
      await new Promise((resolve) => (wake = resolve));
    }
    return arrived.shift();
  };
  return { next, stop: () => Promise.all(services.map((each) => each.stop())) };
}

const aborted = async (request) => request.signal.aborted || once(request.signal, 'abort');

test('an aborted signal ends the call, and that of the request', async () => {
  const { next, stop } = await waiting('waits');
  for (const reason of [new Error('own reason'), undefined]) {
    const controller = new AbortController();
    const call = caller.call('waits', '', { signal: controller.signal });
    const request = await next();
    assert.equal(request.signal.aborted, false);
    controller.abort(reason);
    await assert.rejects(call, (error) => (reason === undefined ? error.name === 'AbortError' : error === reason));
    await aborted(request);
    assert.ok(request.signal.reason instanceof Cancelled);
    assert.equal(request.signal.reason.code, 'ECANCELED');
  }
  await stop();
});

test('a signal that is aborted already sends nothing, and one that is aborted too late has no effect', async () => {
  let ran = 0;
  const service = await host.serve('counts', () => void (ran += 1));
  await assert.rejects(caller.call('counts', '', { signal: AbortSignal.abort() }), { name: 'AbortError' });
  assert.throws(() => caller.stream('counts', '', { signal: 'x' }), TypeError);
  await assert.rejects(caller.call('counts', '', { signal: {} }), TypeError);
  const controller = new AbortController();
  await caller.call('counts', '', { signal: controller.signal });
  controller.abort();
  await caller.ping();
  assert.equal(ran, 1);
  await service.stop();
});

test('a call that is cancelled at once reaches the service that has got it, of several', async () => {
  const others = await Promise.all([1, 2, 3].map(() => connect({ address: bus.address })));
  const { next, stop } = await waiting('one', others);
  for (let ticks = 0; ticks < 8; ticks += 1) {
    const controller = new AbortController();
    const call = caller.call('one', '', { signal: controller.signal });
    call.catch(() => {});
    // At once, before the bus has listed who got it, and later.
    for (let count = 0; count < ticks; count += 1) {
      await new Promise(setImmediate);
    }
    controller.abort();
    await assert.rejects(call, { name: 'AbortError' });
    await aborted(await next());
  }
  await stop();
  await Promise.all(others.map((each) => each.close()));
});

test('a call that times out is cancelled', async () => {
  const { next, stop } = await waiting('late');
  let request = null;
  next().then((each) => (request = each));
  for (let timeout = 200; request === null; timeout *= 2) {
    await assert.rejects(caller.call('late', '', { timeout }), CallTimeout);
  }
  await aborted(request);
  await stop();
});

test('a caller that disconnects cancels its requests, except those that want no response', async () => {
  const other = await connect({ address: bus.address });
  const { next } = await waiting('left', [host]);
  const raw = await RawClient.connect(bus.address);
  raw.post('rpc/left', { uid: 'silent', cmd: 'left' });
  const silent = await next();
  const call = other.call('left');
  call.catch(() => {});
  const request = await next();
  await other.close();
  await assert.rejects(call, { code: 'ECLOSED' });
  await aborted(request);
  raw.post('rpc/left', { uid: 'loud', cmd: 'left', ret: `${raw.address}ret/loud` });
  const loud = await next();
  raw.send(`SUB ${raw.address}ret/`);
  await raw.ping();
  raw.close();
  await aborted(loud);
  assert.equal(silent.signal.aborted, false);
});

test('the end of the own connection cancels requests', async () => {
  const other = await connect({ address: bus.address });
  const { next } = await waiting('ends', [other]);
  const call = caller.call('ends');
  call.catch(() => {});
  const request = await next();
  await other.close();
  await aborted(request);
  await assert.rejects(call, PeerDisconnected);
});

test('no other client can cancel a request, and its uid stays used', async () => {
  const { next, stop } = await waiting('guarded');
  const [raw, other] = await Promise.all([1, 2].map(() => RawClient.connect(bus.address)));
  raw.send(`SUB ${raw.address}ret/`);
  const own = { uid: 'u1', cmd: 'guarded' };
  raw.post('rpc/guarded', { ...own, ret: `${raw.address}ret/u1` });
  const request = await next();
  other.post('rpc/guarded', { ...own, cancel: 1, exp: 1, now: 1 });
  raw.post('rpc/guarded', { ...own, uid: 'u2', cancel: 1, exp: 1, now: 1 });
  raw.post('rpc/guarded', { ...own, ret: `${other.address}x`, cancel: 1 });
  raw.post('rpc/guarded', { ...own, cancel: 2 });
  // A cancellation of what does not run uses no uid, and a second request with a uid is not run.
  raw.post('rpc/guarded', { ...own, uid: 'u2', ret: `${raw.address}ret/u2` });
  raw.post('rpc/guarded', { ...own, ret: `${raw.address}ret/u1` });
  const second = await next();
  assert.equal(second.signal.aborted, false);
  await Promise.all([other.ping(), raw.ping(), host.ping()]);
  assert.equal(request.signal.aborted, false);
  raw.post('rpc/guarded', { ...own, cancel: 1, exp: 1, now: 1 });
  await aborted(request);
  raw.post('rpc/guarded', { ...own, uid: 'u2', cancel: 1, exp: 1, now: 1 });
  await aborted(second);
  raw.post('rpc/guarded', { ...own, uid: 'u3', ret: `${raw.address}ret/u3`, exp: 1, now: 1 });
  assert.equal((await raw.envelope()).uid, 'u3'); // the first response: cancelled requests get none
  await stop();
  raw.close();
  other.close();
});

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { AnswerLost, CallTimeout, connect, NoRecipient, PeerDisconnected, RemoteError, ServiceError } from '../index.js';
import { BusProcess } from './bus_process.js';
import { RawClient } from './raw_client.js';

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

async function texts(stream) {
  const found = [];
  for await (const part of stream) {
    found.push(part.text());
  }
  return found;
}

const numbers = (count) => [...Array(count).keys()].map(String);

async function* count(request) {
  for (const each of numbers(Number(request.text()))) {
    yield each;
  }
}

/** A promise, and what resolves it. */
function event() {
  const made = {};
  made.happened = new Promise((resolve) => (made.note = resolve));
  return made;
}

test('a stream arrives whole, with any window, and many at the same time', async () => {
  const service = await host.serve('count', count);
  for (const window of [1, 2, 3, 16, 1024]) {
    assert.deepEqual(await texts(caller.stream('count', '100', { window })), numbers(100));
  }
  assert.deepEqual(await texts(caller.stream('count', '0')), []);
  const many = await Promise.all(numbers(20).map((each) => texts(caller.stream('count', String(200 + Number(each))))));
  many.forEach((each, place) => assert.deepEqual(each, numbers(200 + place)));
  const first = (await caller.stream('count', '1').next()).value;
  assert.deepEqual([first.callee.uid, first.callee.pid], [process.getuid(), process.pid]);
  await service.stop();
});

test('generators, async iterables and plain responses are streams', async () => {
  const services = [
    await host.serve('generator', function* () {
      yield 'a';
      yield Promise.resolve(new Uint8Array([98]));
      yield null;
    }),
    await host.serve('iterable', async () => ({
      [Symbol.asyncIterator]() {
        let left = 2;
        return { next: async () => ({ done: (left -= 1) < 0, value: String(left) }) };
      },
    })),
    await host.serve('plain', () => 'all'),
  ];
  assert.deepEqual(await texts(caller.stream('generator')), ['a', 'b', '']);
  assert.deepEqual(await texts(caller.stream('iterable')), ['1', '0']);
  assert.deepEqual(await texts(caller.stream('plain')), ['all']);
  await assert.rejects(caller.call('generator'), { text: 'generator streams its response: call it with stream()' });
  await assert.rejects(texts(caller.stream('nothing')), NoRecipient);
  for (const window of [0, 1025, 1.5]) {
    assert.throws(() => caller.stream('plain', '', { window }), RangeError);
  }
  await Promise.all(services.map((each) => each.stop()));
});

test('a handler makes no more parts than its caller has granted', async () => {
  let made = 0;
  const service = await host.serve('ahead', async function* () {
    for (;;) {
      made += 1;
      yield String(made);
    }
  });
  const stream = caller.stream('ahead', '', { window: 8 });
  for (let taken = 1; taken <= 50; taken += 1) {
    assert.equal((await stream.next()).value.text(), String(taken));
    await caller.ping();
    await host.ping();
    assert.ok(made <= taken + 8, `${made} parts were made when ${taken} were taken`);
  }
  await stream.return();
  await service.stop();
});

test('leaving the loop, an aborted signal and the end of the caller end the generator', async () => {
  let ended = event();
  const service = await host.serve('endless', async function* (request) {
    try {
      for (;;) {
        yield 'x';
      }
    } finally {
      ended.note(request.signal.aborted);
    }
  });
  for await (const part of caller.stream('endless')) {
    assert.equal(part.text(), 'x');
    break;
  }
  assert.equal(await ended.happened, true);

  ended = event();
  const controller = new AbortController();
  const stream = caller.stream('endless', '', { signal: controller.signal });
  await stream.next();
  controller.abort();
  assert.equal(await ended.happened, true); // before the program asks for another part
  await assert.rejects(stream.next(), { name: 'AbortError' });
  assert.equal((await stream.next()).done, true);

  ended = event();
  const other = await connect({ address: bus.address });
  const left = other.stream('endless');
  await left.next();
  await other.close();
  assert.equal(await ended.happened, true);
  await assert.rejects(texts(left), { code: 'ECLOSED' });
  await service.stop();
});

test('errors of the generator come after the parts before them', async () => {
  const warned = [];
  const note = (warning) => warned.push(warning.message);
  process.on('warning', note);
  const made = { chosen: new ServiceError('no more'), defect: new RangeError('secret') };
  for (const [name, error] of Object.entries(made)) {
    const service = await host.serve(name, function* () {
      yield 'one';
      yield 'two';
      throw error;
    });
    const stream = caller.stream(name);
    assert.equal((await stream.next()).value.text(), 'one');
    assert.equal((await stream.next()).value.text(), 'two');
    await assert.rejects(stream.next(), (found) => found instanceof RemoteError && found.text === (name === 'chosen' ? 'no more' : 'RangeError'));
    await service.stop();
  }
  await new Promise(setImmediate);
  assert.ok(warned.some((each) => each.includes('secret')));
  process.off('warning', note);
});

test('a part or a response that is too long is an error of the caller alone', async () => {
  let closed = 0;
  const services = [
    await host.serve('long/part', function* () {
      try {
        yield 'short';
        yield Buffer.alloc(400_000);
      } finally {
        closed += 1;
      }
    }),
    await host.serve('long', () => Buffer.alloc(400_000)),
    await host.serve('short', () => 'x'),
  ];
  await assert.rejects(texts(caller.stream('long/part')), { text: 'the part is too long for a packet' });
  assert.equal(closed, 1);
  await assert.rejects(caller.call('long'), /response too long/);
  await assert.rejects(caller.call('short', Buffer.alloc(400_000)), RangeError);
  assert.equal((await caller.call('short')).text(), 'x');
  await Promise.all(services.map((each) => each.stop()));
});

test('a stream fails when its service ends, or no part comes in time', async () => {
  const other = await connect({ address: bus.address });
  const stopped = event();
  let isStarted = false;
  await other.serve('stuck', async function* (request) {
    isStarted = true;
    try {
      yield 'one'; // on a busy machine the caller may give up while it is here
      await new Promise((resolve) => request.signal.addEventListener('abort', resolve));
    } finally {
      stopped.note(request.signal.aborted);
    }
  });
  for (let timeout = 300; !isStarted; timeout *= 2) {
    await assert.rejects(texts(caller.stream('stuck', '', { timeout })), CallTimeout);
  }
  assert.equal(await stopped.happened, true);
  const left = caller.stream('stuck');
  assert.equal((await left.next()).value.text(), 'one');
  await other.close();
  await assert.rejects(left.next(), PeerDisconnected);
});

test('a service that stops ends its streams with an error', async () => {
  const service = await host.serve('stops', function* () {
    for (;;) {
      yield 'x';
    }
  });
  const stream = caller.stream('stops', '', { window: 4 });
  await stream.next();
  await service.stop();
  await assert.rejects(texts(stream), { text: 'the service has stopped' });
});

test('a caller continues with one of several services, and cancels the request at the others', async () => {
  const others = await Promise.all([1, 2].map(() => connect({ address: bus.address })));
  const ends = others.map(() => event());
  for (const [place, each] of others.entries()) {
    await each.serve('several', async function* (request) {
      try {
        for (let part = 0; part < 20; part += 1) {
          yield String(place);
        }
      } finally {
        ends[place].note(request.signal.aborted);
      }
    }, { group: null });
  }
  const found = await texts(caller.stream('several'));
  assert.equal(new Set(found).size, 1);
  assert.equal(found.length, 20);
  const chosen = Number(found[0]);
  assert.equal(await ends[chosen].happened, false);
  assert.equal(await ends[1 - chosen].happened, true);
  await Promise.all(others.map((each) => each.close()));
});

// A service that does not keep the rules, and one that is not called

async function misbehaving(command, act) {
  const raw = await RawClient.connect(bus.address);
  await raw.serve(command);
  const stream = caller.stream(command, '', { window: 4 });
  const next = stream.next();
  const request = await raw.envelope();
  const respond = (members) => raw.post(request.ret, { uid: request.uid, cmd: command, now: 1, ...members });
  await act(respond, request, raw);
  return { stream, next, raw, request };
}

test('parts with a wrong number fail the stream, and the request is cancelled', async () => {
  const sequences = [[[2], AnswerLost], [[1, 3], AnswerLost], [[1, 1], AnswerLost], [[1, 0], AnswerLost], [[1, 2, 3, 4, 5, 6, 7], RemoteError]];
  for (const [sequence, kind] of sequences) {
    const { stream, next, raw, request } = await misbehaving('wrong', (respond) => sequence.forEach((seq) => respond({ seq, more: 1 })));
    await assert.rejects(next.then(() => texts(stream)), (error) => error instanceof kind && (kind === AnswerLost || /not requested yet/.test(error.text)));
    for (;;) {
      const message = await raw.envelope();
      if (message.cancel) {
        assert.deepEqual([message.uid, message.cmd, message.exp, message.now], [request.uid, 'wrong', 1, 1]);
        break;
      }
    }
    raw.close();
  }
});

test('an invalid response of the service fails the stream', async () => {
  for (const members of [{ seq: -1, more: 1 }, { seq: 1, more: 2 }, { seq: 1.5 }, { dat: 'x' }]) {
    const { next, raw } = await misbehaving('invalid', (respond) => respond(members));
    await assert.rejects(next, { text: 'invalid response' });
    raw.close();
  }
});

test('no other client can add a part to a stream, or end it', async () => {
  const other = await RawClient.connect(bus.address);
  const { stream, next, raw, request } = await misbehaving('forged', async (respond, { uid, ret }) => {
    for (const members of [{ seq: 1, more: 1, dat: 'Zm9yZ2Vk' }, { seq: 1 }, { err: 'forged' }, { dat: 'Zm9yZ2Vk' }]) {
      other.post(ret, { uid, cmd: 'forged', ...members });
    }
    await other.ping();
    respond({ seq: 1, more: 1, dat: 'b3du' });
  });
  assert.equal((await next).value.text(), 'own');
  other.post(request.ret, { uid: request.uid, cmd: 'forged', seq: 2 });
  await other.ping();
  raw.post(request.ret, { uid: request.uid, cmd: 'forged', seq: 2, more: 1, dat: 'b3du' });
  raw.post(request.ret, { uid: request.uid, cmd: 'forged', seq: 3 });
  assert.deepEqual(await texts(stream), ['own']);
  raw.close();
  other.close();
});

// A caller that does not keep the rules

test('a service sends only what its caller has granted, however it asks', async () => {
  let made = 0;
  const ended = event();
  const service = await host.serve('granted', async function* () {
    try {
      for (;;) {
        made += 1;
        yield 'x';
      }
    } finally {
      ended.note();
    }
  });
  const [raw, other] = await Promise.all([1, 2].map(() => RawClient.connect(bus.address)));
  const ret = `${raw.address}ret/s`;
  raw.send(`SUB ${raw.address}ret/`);
  const about = { uid: 's', cmd: 'granted', exp: 1, now: 1 };
  raw.post('rpc/granted', { uid: 's', cmd: 'granted', ret, win: 2 });
  assert.deepEqual([(await raw.envelope()).seq, (await raw.envelope()).seq], [1, 2]);
  other.post('rpc/granted', { ...about, more: 1, win: 9 });
  raw.post('rpc/granted', { ...about, more: 1, win: 1 });
  raw.post('rpc/granted', { ...about, more: 1, win: 2 + 1024 + 1 });
  raw.post('rpc/granted', { ...about, more: 1, win: -1 });
  raw.post('rpc/granted', { ...about, uid: 't', more: 1, win: 9 });
  raw.post('rpc/granted', { ...about, more: 1, win: 9, ret: `${other.address}ret/s` });
  await Promise.all([other.ping(), raw.ping()]);
  await host.ping();
  await new Promise(setImmediate);
  assert.equal(made, 2);
  raw.post('rpc/granted', { ...about, more: 1, win: 3 });
  const third = await raw.envelope();
  assert.deepEqual([third.uid, third.seq, third.more, third.sender], ['s', 3, 1, third.sender]);
  assert.equal(made, 3);
  raw.post('rpc/granted', { ...about, cancel: 1 });
  await ended.happened;
  await service.stop();
  raw.close();
  other.close();
});

test('a user has a limited number of streams, which takes no place of calls', async () => {
  const service = await host.serve('limited', function* () {
    for (;;) {
      yield 'x';
    }
  });
  const plain = await host.serve('plain', () => 'x');
  const raw = await RawClient.connect(bus.address);
  raw.send(`SUB ${raw.address}ret/`);
  for (let number = 0; number < 65; number += 1) {
    raw.post('rpc/limited', { uid: String(number), cmd: 'limited', ret: `${raw.address}ret/${number}`, win: 1 });
  }
  const answers = [];
  while (answers.length < 65) {
    answers.push(await raw.envelope());
  }
  assert.equal(answers.filter((each) => each.seq === 1).length, 64);
  assert.match(answers.find((each) => each.err).err, /^busy: 64 streams of user/);
  assert.equal((await caller.call('plain')).text(), 'x');
  raw.post('rpc/limited', { uid: '0', cmd: 'limited', cancel: 1, exp: 1, now: 1 });
  await raw.ping();
  await host.ping();
  await new Promise(setImmediate); // the service has ended that stream
  assert.equal((await caller.stream('limited').next()).value.text(), 'x');
  raw.close();
  await service.stop();
  await plain.stop();
});

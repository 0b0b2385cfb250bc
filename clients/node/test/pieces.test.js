import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';

import { candidates } from '../lib/address.js';
import { decode, encode } from '../lib/envelope.js';
import { FrameReader } from '../lib/frames.js';
import { Sender } from '../lib/items.js';
import { matches } from '../lib/patterns.js';

test('frames do not depend on how the stream is cut', () => {
  const packets = ['', 'a', 'b'.repeat(5), 'c'.repeat(70_000)].map((each) => Buffer.from(each));
  const stream = Buffer.concat(packets.flatMap((each) => [Buffer.from(Uint32Array.of(each.length).buffer), each]));
  for (const size of [1, 2, 3, 4, 5, 7, 4096, stream.length]) {
    const found = [];
    const reader = new FrameReader((bytes, start, end) => found.push(bytes.toString('utf8', start, end)));
    for (let place = 0; place < stream.length; place += size) {
      reader.feed(stream.subarray(place, place + size));
    }
    assert.deepEqual(found.filter(Boolean), packets.map(String).filter(Boolean));
  }
});

test('patterns match as sbus-protocol(7) says', () => {
  const table = [
    ['a/*/c/', 'a/b/c/', true], ['a/*/c/', 'a/b/c/d/e', true], ['a/*/c/', 'a/b/c', false], ['a/*/c/', 'a/c/d', false],
    ['ab*/c', 'abx/c', true], ['ab*/c', 'ab/c', true], ['ab*x/c', 'abx/c', false], ['a/*', 'a/', true], ['a/*', 'a/b/c', false],
    ['a/**', 'a/b', true], ['a/', 'a', false], ['*/cred/', '!/cred/0/0/1/x', false], ['', 'a/b', true], ['', '!/event/connect/1', false],
    ['!/event/connect/', '!/event/connect/1', true], ['!/event/*/1', '!/event/connect/1', true], ['!/*/connect/1', '!/event/connect/1', false],
    ['!/conn/7/ret/', '!/conn/7/ret/x', true], ['!/conn/*/ret/', '!/conn/7/ret/x', false], ['a', 'a', true], ['a', 'b', false],
  ];
  for (const [pattern, key, expected] of table) {
    assert.equal(matches(pattern, key), expected, `${pattern} ${key}`);
  }
});

test('addresses', () => {
  assert.deepEqual(candidates('/x'), ['/x']);
  assert.deepEqual(candidates(undefined, {}), ['/run/sbus-stream.socket']);
  assert.deepEqual(candidates(undefined, { SBUS_ADDRESS: '/a.socket' }), ['/a-stream.socket', '/a.socket']);
  assert.deepEqual(candidates(undefined, { SBUS_ADDRESS: '/a', SBUS_STREAM_ADDRESS: '/b' }), ['/b']);
  assert.deepEqual(candidates('/dev/unix/abstract/0061'), [`\0a${'\0'.repeat(106)}`]);
  assert.deepEqual(candidates('/dev/unix/abstract/2f61'), ['/a']);
  assert.throws(() => candidates('/dev/unix/abstract/xyz'), /hexadecimal/);
  assert.throws(() => candidates(5), TypeError);
});

test('senders', () => {
  const plain = Sender.parse('!/from/7/!/cred/1/2/3');
  assert.deepEqual({ ...plain }, { connection: 7, credentials: '!/cred/1/2/3', gid: 1, uid: 2, pid: 3, origin: null });
  const chained = Sender.parse('!/from/7/!/cred/9/9/9/!/cred/1/2/3/host/alpha/!/cred/4/5/6');
  assert.deepEqual([chained.uid, chained.origin], [-1, 'host/alpha/!/cred/4/5/6']);
  assert.equal(Sender.parse('!/from/x/y'), null);
});

test('envelopes', () => {
  const made = decode(Buffer.from(encode({ uid: 'u', cmd: 'c', dat: Buffer.from('data'), exp: 3, ret: '!/conn/1/ret/u' }), 'latin1'));
  assert.deepEqual([made.uid, made.cmd, made.dat.toString(), made.exp, made.ret], ['u', 'c', 'data', 3, '!/conn/1/ret/u']);
  const texts = { uid: 'a"b', cmd: 'größe\\😀', ret: '', err: 'line\n"\u007f\ud800', ctx: '' };
  const written = Buffer.from(encode({ ...texts, dst: [3, 7], exp: 2, now: 9, seq: 4, more: 1, win: 5 }), 'latin1').toString();
  assert.deepEqual(JSON.parse(written), {
    ver: 1, uid: texts.uid, cmd: texts.cmd, exp: 2, try: 0, dat: '', src: 0, dst: [3, 7], ret: '', shm: '', now: 9, err: texts.err, seq: 4, more: 1, win: 5,
  });
  const good = { ver: 1, uid: 'u', cmd: 'c' };
  assert.notEqual(decode(Buffer.from(JSON.stringify({ ...good, other: {} }))), null);
  const ctx = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
  assert.equal(decode(Buffer.from(encode({ ...good, ctx }), 'latin1')).ctx, ctx);
  for (const wrong of ['x', `${ctx}-x`, `cc${ctx.slice(2)}-${'x'.repeat(201)}`, 5, null, [ctx]]) {
    assert.equal(decode(Buffer.from(JSON.stringify({ ...good, ctx: wrong }))).ctx, '');
  }
  const wrong = [
    { ver: 2 }, { uid: '' }, { uid: 5 }, { cmd: 'x'.repeat(300) }, { dat: 'a' }, { dat: [] }, { exp: -1 }, { exp: 1.5 }, { ret: 'a\n' },
  ];
  for (const each of wrong) {
    assert.equal(decode(Buffer.from(JSON.stringify({ ...good, ...each }))), null, JSON.stringify(each));
  }
  for (const text of ['', '[]', 'null', '{', '5']) {
    assert.equal(decode(Buffer.from(text)), null);
  }
});

test('the types declare what the package exports', async () => {
  const types = await readFile(new URL('../index.d.ts', import.meta.url), 'utf8');
  const declared = [...types.matchAll(/^export (?:class|function) (\w+)/gm)].map((found) => found[1]);
  assert.deepEqual(declared.sort(), Object.keys(await import('../index.js')).sort());
});

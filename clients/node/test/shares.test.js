import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Gap, Message } from '../index.js';
import { Sender } from '../lib/items.js';
import { Subscription } from '../lib/subscription.js';

const OWN = process.geteuid();
const [ALICE, BOB, CAROL] = [OWN + 1, OWN + 2, OWN + 3];
const MAX_BYTES = 64_000;
const MESSAGE = Buffer.from(`k\0${'x'.repeat(1_000 - 256 - 2)}`); // 1,000 bytes with what a message takes besides

function subscribed() {
  return new Subscription({ _unsubscribe() {} }, [Buffer.from('k')], { maxBytes: MAX_BYTES });
}

function message(uid, origin = '') {
  const sender = uid === null ? null : Sender.parse(`!/from/7/!/cred/${uid}/${uid}/1${origin}`);
  return new Message(MESSAGE, 0, 1, MESSAGE.length, 'k', sender, null);
}

/** Return how many of `count` messages of a user are kept. */
function kept(subscription, uid, count, origin = '') {
  const before = subscription.dropped;
  for (let number = 0; number < count; number += 1) {
    subscription._put(message(uid, origin));
  }
  return count - (subscription.dropped - before);
}

test('a flood of one user does not push out the messages of another', () => {
  const subscription = subscribed();
  assert.equal(kept(subscription, BOB, 20_000), 32);
  assert.equal(kept(subscription, ALICE, 1), 1);
  assert.equal(kept(subscription, BOB, 1), 0);
  const items = [];
  for (let item = subscription._take(); item !== null; item = subscription._take()) {
    items.push(item);
  }
  const [gap, one, last] = items.slice(32);
  assert.ok(gap instanceof Gap && last instanceof Gap);
  assert.deepEqual([gap.count, one.sender.uid, last.count], [20_000 - 32, ALICE, 1]);
});

test('each foreign user can fill half of what all others leave free, and the own user all of it', () => {
  const subscription = subscribed();
  assert.deepEqual([ALICE, BOB, CAROL].map((uid) => kept(subscription, uid, 100)), [32, 16, 8]);
  assert.equal(kept(subscription, OWN, 100), 7); // the gaps take space too
  assert.equal(kept(subscription, ALICE, 1), 0);
});

test('what the program takes is free again', () => {
  const subscription = subscribed();
  for (let round = 0; round < 3; round += 1) {
    assert.equal(kept(subscription, BOB, 32), 32);
    for (let item = subscription._take(); item !== null; item = subscription._take()) {
      assert.ok(item instanceof Message);
    }
  }
});

test('a service that passes on messages of others has one share', () => {
  const subscription = subscribed();
  assert.equal(kept(subscription, BOB, 100, '/!/host/a/!/cred/1/1/1'), 32);
  assert.equal(kept(subscription, BOB, 100, '/!/host/b/!/cred/1/1/1'), 0);
});

test('messages of unknown senders and of the own user can fill all', () => {
  assert.equal(kept(subscribed(), null, 100), 64);
  assert.equal(kept(subscribed(), OWN, 100), 64);
});

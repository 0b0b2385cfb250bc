import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';

import { connect } from '../index.js';
import { hint } from '../lib/pattern_hints.js';
import { BusProcess } from './bus_process.js';

test('patterns that are probably mistakes have the hints of the other clients', async () => {
  const cases = Object.entries(JSON.parse(await readFile(new URL('pattern_hints.json', import.meta.url))));
  for (const [pattern, expected] of cases) {
    assert.equal(hint(pattern), expected && expected.replaceAll("'", '"'));
  }
  assert.ok(cases.length > 30);
});

test('a long pattern is cut between characters', () => {
  const text = hint(`${'😀'.repeat(2_000)}/#`);
  assert.ok(text.length < 700);
  assert.ok(!/\p{Surrogate}|\\ud/u.test(text));
});

test('subscribe warns of a pattern that is probably a mistake, and stores it', async () => {
  const bus = await BusProcess.start();
  const one = await connect({ address: bus.address });
  const warned = once(process, 'warning');
  const subscription = await one.subscribe('a/', ['a/#'], { group: 'workers' });
  const [warning] = await warned;
  assert.equal(warning.name, 'PatternWarning');
  assert.match(warning.message, /^"a\/#" looks like a pattern of MQTT, and matches only itself here; write "a\/"$/);
  assert.deepEqual(subscription.patterns, ['a/', 'a/#']);
  await one.close();
  await bus.stop();
});

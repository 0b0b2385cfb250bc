/** Which patterns match a key. Keys and patterns are byte strings: one character for each byte. Spec: sbus-protocol(7) §3. */

import { shown, utf8Of } from './arguments.js';

/** Return the bytes of a key or a pattern, given as text or as bytes. `name` is the argument in error messages. */
export function toBytes(value, name) {
  const bytes = typeof value === 'string' ? utf8Of(value, name) : value instanceof Uint8Array ? Buffer.from(value) : null;
  if (bytes === null) {
    throw new TypeError(`${name} must be a string or a Uint8Array, not ${shown(value)}`);
  }
  if (bytes.includes(0)) {
    throw new TypeError(`${name} must not contain NUL`);
  }
  return bytes;
}

const PRIVATE = '!/cred/';
const IDS = /^!\/cred\/[0-9]*\/[0-9]*\/[0-9]*\//;

/** Return the bytes of a pattern to subscribe to. Throws TypeError for one that the bus answers by closing the connection. */
export function checkPattern(bytes) {
  const text = bytes.toString('latin1');
  if (text.startsWith(PRIVATE) && !IDS.test(text)) {
    throw new TypeError(`invalid pattern ${JSON.stringify(text)}: must be !/cred/<gid>/<uid>/<pid>/<rest>, each id decimal or empty`);
  }
  return bytes;
}

const ASCII = /^[\x00-\x7f]*$/;

/** Return the UTF-8 of a text, with one character for each byte. */
export function toLatin1(text) {
  return ASCII.test(text) ? text : Buffer.from(text).toString('latin1');
}

/** Return how many first segments of a reserved key a pattern must name to match it: no wildcard matches them. */
function guardOf(key) {
  if (!key.startsWith('!/')) {
    return 0;
  }
  return key.startsWith('!/cred/') ? 5 : key.startsWith('!/conn/') ? 3 : 2;
}

/** Return whether a pattern matches a key. */
export function matches(pattern, key) {
  const guard = guardOf(key);
  const wanted = pattern.split('/');
  const segments = key.split('/');
  const matchesRest = wanted.at(-1) === '';
  if (matchesRest) {
    wanted.pop();
  }
  const missing = segments.length - wanted.length;
  if (matchesRest ? missing < 1 || wanted.length < guard : missing !== 0) {
    return false;
  }
  return wanted.every((want, place) => {
    const star = want.indexOf('*');
    if (star < 0) {
      return segments[place] === want;
    }
    return place >= guard && /^\*+$/.test(want.slice(star)) && segments[place].startsWith(want.slice(0, star));
  });
}

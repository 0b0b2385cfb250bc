/** Checks of what a program gives to public functions, so that a mistake is reported where it is made, before anything is sent. */

/** The longest timer of Node: 24.8 days. */
const MOST_MILLISECONDS = 0x7fff_ffff;
const MAX_GROUP_BYTES = 64;
const MAX_SHOWN = 60;
/** What Python does not call printable either, except the space. */
const UNPRINTABLE = /[\p{C}\p{Zl}\p{Zp}]|(?! )\p{Zs}/u;
const SURROGATE = /\p{Surrogate}/u;

/** Throws TypeError or RangeError unless it is a number of milliseconds that Node can wait, or Infinity for no limit. */
export function checkTimeout(timeout, name = 'timeout') {
  if (typeof timeout !== 'number') {
    throw new TypeError(`${name} must be a number of milliseconds, not ${shown(timeout)}`);
  }
  if (!(timeout > 0 && (timeout <= MOST_MILLISECONDS || timeout === Infinity))) {
    throw new RangeError(`${name} must be above 0 and at most ${MOST_MILLISECONDS} milliseconds, or Infinity for no limit, not ${timeout}`);
  }
}

/** Throws TypeError or RangeError unless it is a number of bytes, or Infinity. */
export function checkSize(size, name) {
  if (typeof size !== 'number') {
    throw new TypeError(`${name} must be a number of bytes, not ${shown(size)}`);
  }
  if (!(size >= 1)) {
    throw new RangeError(`${name} must be at least 1, or Infinity for no limit, not ${size}`);
  }
}

/** Throws TypeError or RangeError unless it is an integer from `least` to `most`. */
export function checkCount(count, name, least, most = Number.MAX_SAFE_INTEGER) {
  if (typeof count !== 'number') {
    throw new TypeError(`${name} must be a number, not ${shown(count)}`);
  }
  if (!Number.isInteger(count) || count < least || count > most) {
    throw new RangeError(`${name} must be an integer from ${least} to ${most}, not ${count}`);
  }
}

/** Throws TypeError unless it is a function. */
export function checkFunction(value, name) {
  if (typeof value !== 'function') {
    throw new TypeError(`${name} must be a function, not ${shown(value)}`);
  }
}

/** Throws TypeError unless it is true or false. */
export function checkFlag(value, name) {
  if (typeof value !== 'boolean') {
    throw new TypeError(`${name} must be true or false, not ${shown(value)}`);
  }
}

/** Throws TypeError unless it is an AbortSignal. */
export function checkSignal(value, name) {
  if (!(value instanceof AbortSignal)) {
    throw new TypeError(`${name} must be an AbortSignal, not ${shown(value)}`);
  }
}

/** Throws TypeError unless it can be the address of a bus. */
export function checkAddress(value, name) {
  if (typeof value !== 'string' || value === '' || value.includes('\0')) {
    throw new TypeError(`${name} must be a path or /dev/unix/abstract/ and hexadecimal digits, not ${shown(value)}`);
  }
}

/** Throws TypeError unless it can be the name of a queue group. */
export function checkGroup(value, name) {
  const isValid = typeof value === 'string' && value !== '' && Buffer.byteLength(value) <= MAX_GROUP_BYTES;
  if (!isValid || value.includes('/') || UNPRINTABLE.test(value)) {
    throw new TypeError(`${name} must be 1 to ${MAX_GROUP_BYTES} bytes of printable text without /, not ${shown(value)}`);
  }
}

/** Return whether it is an object that can have options, of whichever realm. */
export function isOptions(value) {
  return Object.prototype.toString.call(value) === '[object Object]';
}

/** Return the bytes of a payload. Throws TypeError. */
export function payloadOf(payload) {
  if (typeof payload === 'string') {
    return utf8Of(payload, 'payload');
  }
  if (payload instanceof Uint8Array) {
    return payload;
  }
  throw new TypeError(`payload must be a string or a Uint8Array, not ${shown(payload)}`);
}

/** Return the UTF-8 of a text, the argument `name`. Throws TypeError for half a surrogate pair, of which Buffer makes another character. */
export function utf8Of(text, name) {
  if (!(text.isWellFormed?.() ?? !SURROGATE.test(text))) {
    throw new TypeError(`${name} must not contain a lone surrogate; give a Uint8Array instead of ${shown(text)}`);
  }
  return Buffer.from(text);
}

/** Return a value for error messages, or its type if it is long to write. */
export function shown(value) {
  switch (typeof value) {
    case 'string':
      return JSON.stringify(value.length > MAX_SHOWN ? `${value.slice(0, MAX_SHOWN)}…` : value);
    case 'object':
      return value === null ? 'null' : Array.isArray(value) ? 'an array' : 'an object';
    case 'function':
      return 'a function';
    case 'bigint':
      return 'a bigint';
    default:
      return String(value);
  }
}

/** Call `act` after this time, never for Infinity; return the timer, which clearTimeout takes. */
export function later(act, milliseconds) {
  return milliseconds === Infinity ? null : setTimeout(act, milliseconds);
}

/** Requests and responses. Spec: sbus-rpc(7) §2. */

import { shown } from './arguments.js';
import { toLatin1 } from './patterns.js';

const LIMITS = {
  uid: 128, cmd: 256, ret: 4096, shm: 256, err: 4096,
  exp: 31_536_000, try: 1_000, src: 0xffff_ffff, now: 2 ** 53, seq: 2 ** 53, win: 2 ** 53,
};
/** `exp` and `now` of messages that are not to be run: they expired in 1970. */
export const PAST = 1;
const ASCII = /^[ -~]*$/;
/** Printable ASCII that JSON does not escape. */
const UNESCAPED = /^[ !#-[\]-~]*$/;
const PRINTABLE = /^[^\p{C}\p{Zl}\p{Zp}]*$/u;
/** W3C traceparent; version ff and ids of zeros are invalid, and version 00 has no more fields. */
const CONTEXT = /^(?!ff)(?!00-.{52}-)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?$/;
const EMPTY = Buffer.alloc(0);
const DECODER = new TextDecoder('utf-8', { fatal: true });
const MAX_CONTEXT_BYTES = 256;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

/** Return whether a command can have this name. */
export function isCommand(command) {
  return command !== '' && !command.includes('*') && PRINTABLE.test(command) && Buffer.byteLength(command) <= LIMITS.cmd;
}

/** Throws TypeError if a command cannot have this name. */
export function checkCommand(command) {
  if (typeof command !== 'string') {
    throw new TypeError(`command must be a string, not ${shown(command)}`);
  }
  if (!isCommand(command)) {
    throw new TypeError(`invalid command ${shown(command)}: it must be 1 to ${LIMITS.cmd} bytes of printable text without *`);
  }
}

/** Throws TypeError if a call cannot have this trace context. */
export function checkContext(context, name) {
  if (context !== '' && !isContext(context)) {
    throw new TypeError(`${name} must be a W3C traceparent, not ${shown(context)}`);
  }
}

/**
 * Return a request, a response, or a message about a request, with one character for each byte. Members after `err` are omitted if they
 * have their default. Most texts need no escapes, so the object is written here: JSON.stringify takes three times as long.
 */
export function encode({ uid, cmd, exp = 0, dat = EMPTY, dst = [], ret = '', now = 0, err = '', cancel = 0, seq = 0, more = 0, win = 0, ctx = '' }) {
  const sent = now || Math.floor(Date.now() / 1000);
  let text =
    `{"ver":1,"uid":${quoted(uid)},"cmd":${quoted(cmd)},"exp":${exp},"try":0,"dat":"${base64(dat)}","src":0,"dst":[${dst}],` +
    `"ret":${quoted(ret)},"shm":"","now":${sent},"err":${quoted(err)}`;
  if (cancel) text += `,"cancel":${cancel}`;
  if (seq) text += `,"seq":${seq}`;
  if (more) text += `,"more":${more}`;
  if (win) text += `,"win":${win}`;
  if (ctx) text += `,"ctx":${quoted(ctx)}`;
  return `${text}}`;
}

function quoted(text) {
  return UNESCAPED.test(text) ? `"${text}"` : toLatin1(JSON.stringify(text));
}

function base64(bytes) {
  return bytes.length === 0 ? '' : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString('base64');
}

/** Return the members of the request or the response at `start` to `end` of `bytes`, with `dat` as bytes; null if it violates a rule. */
export function decode(bytes, start = 0, end = bytes.length) {
  let value;
  try {
    value = JSON.parse(DECODER.decode(start === 0 && end === bytes.length ? bytes : bytes.subarray(start, end)));
  } catch {
    return null;
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value) || value.ver !== 1) {
    return null;
  }
  const { uid, cmd, dat = '', ret = '', shm = '', err = '', ctx } = value;
  const { exp = 0, try: tries = 0, src = 0, now = 0, cancel = 0, seq = 0, more = 0, win = 0 } = value;
  const isValid =
    isText(uid, LIMITS.uid) && uid !== '' && isPrintable(uid) &&
    isText(cmd, LIMITS.cmd) && cmd !== '' && isPrintable(cmd) &&
    isText(ret, LIMITS.ret) && isPrintable(ret) &&
    isText(shm, LIMITS.shm) && isText(err, LIMITS.err) &&
    isNumber(exp, LIMITS.exp) && isNumber(tries, LIMITS.try) && isNumber(src, LIMITS.src) && isNumber(now, LIMITS.now) &&
    isNumber(cancel, 1) && isNumber(seq, LIMITS.seq) && isNumber(more, 1) && isNumber(win, LIMITS.win) &&
    typeof dat === 'string' && BASE64.test(dat);
  if (!isValid) {
    return null;
  }
  const data = dat === '' ? EMPTY : Buffer.from(dat, 'base64');
  return { uid, cmd, dat: data, ret, err, exp, src, now, cancel, seq, more, win, ctx: isContext(ctx) ? ctx : '' }; // an invalid one is ignored
}

/** Whether a value is text of at most this number of bytes. A character has at most three bytes for each of its UTF-16 units. */
function isText(value, most) {
  return typeof value === 'string' && (value.length * 3 <= most || Buffer.byteLength(value) <= most);
}

function isPrintable(text) {
  return ASCII.test(text) || PRINTABLE.test(text);
}

function isNumber(value, most) {
  return Number.isInteger(value) && value >= 0 && value <= most;
}

function isContext(value) {
  return typeof value === 'string' && value.length <= MAX_CONTEXT_BYTES && CONTEXT.test(value);
}

/** Return whether a request has expired. Both times are whole seconds, so it has up to a second more than it says. */
export function isExpired({ exp, now }) {
  return exp > 0 && now > 0 && Date.now() / 1000 >= now + exp + 1;
}

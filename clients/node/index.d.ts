/** A client for sbusd, a message bus for Linux machines. See README.md. */

/** Text is sent as UTF-8. It must not contain half a surrogate pair. */
export type Bytes = string | Uint8Array;

/**
 * An option that is undefined has its default. Options with other names, and values that are not described here, are refused with TypeError
 * or RangeError.
 */
export interface ConnectOptions {
  /** The stream socket. Default: $SBUS_STREAM_ADDRESS, the stream socket next to $SBUS_ADDRESS, or /run/sbus-stream.socket. */
  address?: string;
  /** Connect again when the connection ends, and subscribe again. Default: false. */
  reconnect?: boolean;
  /** Let messages of this connection wait for slow recipients, up to the limits of the bus. Default: false; the bus discards messages. */
  pace?: boolean;
  /** Let messages have their `sender`. Default: false; a call or a service turns it on. */
  senders?: boolean;
  /**
   * How long to wait for the connection, and for answers of the bus and of services, in milliseconds: at most 2147483647, or Infinity for no
   * limit. Default: 30000.
   */
  timeout?: number;
  /** Gets refused publications that were sent without a receipt. Default: a warning of the process. */
  onRefused?: (code: string, text: string) => void;
}

export interface PublishOptions {
  /** Resolve with the number of recipients. Default: false. */
  receipt?: boolean;
}

export interface SubscribeOptions {
  /** Gets what is not a message when the subscription is iterated over. Default: a warning of the process. */
  onGap?: (item: Gap | Replaced | Reconnected) => void;
  /**
   * Bytes of messages that wait for the program, at least 1; more are dropped and reported as a Gap. Infinity: no limit. Default: 64 MiB.
   * With `senders`, a foreign user can fill half of the space that the messages of all others leave free.
   */
  maxBytes?: number;
  /** Share the messages with the other members of this queue group: 1 to 64 bytes of printable text without /. Default: null, for no group. */
  group?: string | null;
}

export interface CallOptions {
  /** In milliseconds: at most 2147483647, or Infinity for no limit. Default: that of the bus. */
  timeout?: number;
  /** The number of the only connection to call. Default: null, for one service of each user that serves the command. */
  connection?: number | null;
  /** The W3C traceparent of the caller's span, for the service. */
  context?: string;
  /** When it is aborted, the call rejects with its reason, and the service is notified. A call that times out is cancelled too. */
  signal?: AbortSignal;
}

/** The `timeout` applies to each part. */
export interface StreamOptions extends CallOptions {
  /** How many parts the service may send before the program takes them: 1 to 1024. Default: 16. */
  window?: number;
}

export interface ServeOptions {
  /** The uids and gids that may call: users, groups or both. Default: everyone. */
  allow?: { users?: number[]; groups?: number[] };
  /** The queue group: of all services of one user in it, one runs each request. null: run every request. Default: 'rpc'. */
  group?: string | null;
}

/** Connect to a bus. Rejects with NoBus; with TypeError, RangeError or SbusError (EINVAL) for wrong options. */
export function connect(options?: ConnectOptions): Promise<Bus>;

/**
 * A connection to a bus, from `connect`. Every method can reject with Disconnected; with TimedOut if the bus does not answer, or if there is
 * no connection, for as long as `timeout`; and with TypeError or RangeError for wrong arguments, for which `publish` and `stream` throw.
 */
export class Bus implements AsyncDisposable {
  constructor(options: ConnectOptions);
  readonly state: 'connected' | 'reconnecting' | 'closed';
  /**
   * Publish a message. The promise waits while the bus reads more slowly than this program writes, and while it is reconnecting.
   * With `receipt` it is the number of recipients, or null if the bus does not tell it. A refusal rejects with Refused then. Throws RangeError
   * for a message that is too long for a packet.
   */
  publish(key: Bytes, payload?: Bytes, options?: PublishOptions & { receipt?: false }): Promise<void>;
  publish(key: Bytes, payload: Bytes, options: PublishOptions & { receipt: true }): Promise<number | null>;
  /**
   * Subscribe to patterns. Rejects with Refused. If its code is EACCES, as for the private keys of others, the bus has closed the connection,
   * and the other subscriptions have ended, or with `reconnect` get a Reconnected.
   * Emits a warning of Node with the name PatternWarning for a pattern with a wildcard at a wrong place, or with one of MQTT or NATS.
   */
  subscribe(...patterns: (Bytes | Bytes[])[]): Promise<Subscription>;
  subscribe(pattern: Bytes | Bytes[], options: SubscribeOptions): Promise<Subscription>;
  /** Call a service. Rejects with CallError, or with the reason of `signal`; with Refused if this user may not see the members of the command. */
  call(command: string, data?: Bytes, options?: CallOptions): Promise<Response>;
  /**
   * Call a service whose response may have parts, and iterate over them; of another service there is one. The request is sent when the first
   * part is asked for. A program that leaves the loop cancels the request. Throws CallError; AnswerLost if parts are missing.
   */
  stream(command: string, data?: Bytes, options?: StreamOptions): AsyncGenerator<Response, void, void>;
  /** Run a service. Rejects with Refused. */
  serve(command: string, handler: Handler, options?: ServeOptions): Promise<Service>;
  /** The credentials of this connection, such as `!/cred/1000/1000/4711`. */
  whoami(): Promise<string>;
  /** Wait until the bus has handled everything that was sent before. */
  ping(): Promise<void>;
  /** Answer the requests that have arrived, let subscriptions deliver what the bus has sent, send everything, and close. */
  drain(): Promise<void>;
  /** Send everything, and close: resolves when the bus has what was published, or after `timeout`. Never rejects. */
  close(): Promise<void>;
  /** Let the process end although the bus is open. What was published is sent before. */
  unref(): this;
  /** Undo `unref`. */
  ref(): this;
  [Symbol.asyncDispose](): Promise<void>;
}

export class Subscription implements AsyncIterable<Message> {
  private constructor();
  readonly patterns: string[];
  readonly group: string | null;
  /** How many messages and gaps wait for the program. */
  readonly pending: number;
  /** How many messages were dropped because the program read too slowly. */
  readonly dropped: number;
  [Symbol.asyncIterator](): AsyncIterableIterator<Message>;
  /** Iterate over messages, and over everything else in its place. */
  items(): AsyncIterableIterator<Message | Gap | Replaced | Reconnected>;
  /** Iterate over lists of the items that are there: the fastest way to receive. */
  batches(): AsyncGenerator<(Message | Gap | Replaced | Reconnected)[], void, void>;
  /** The next item, or null at the end. Rejects with Disconnected, as iteration does. */
  next(): Promise<Message | Gap | Replaced | Reconnected | null>;
  /** Unsubscribe. Iteration ends at once. */
  close(): void;
  /** Unsubscribe. Iteration yields what the bus has sent, and then ends. */
  drain(): Promise<void>;
}

export class Message {
  private constructor();
  /** UTF-8, or Latin-1 if the key is not UTF-8. */
  readonly key: string;
  readonly keyBytes: Buffer;
  readonly payload: Buffer;
  /** Who published it, as the bus verifies it; null without `senders`. */
  readonly sender: Sender | null;
  /** The queue group as whose member this connection got it. */
  readonly group: string | null;
  text(): string;
  json(): any;
}

export class Sender {
  private constructor();
  readonly connection: number;
  /** Those of the connection, such as `!/cred/1000/1000/4711`. */
  readonly credentials: string;
  /** -1 with an `origin`, as `uid` and `pid`: the author is not a user of this host. */
  readonly gid: number;
  readonly uid: number;
  readonly pid: number;
  /** Whose message a service passes on, such as sbus-link, by its own account; null for a message of the connection itself. */
  readonly origin: string | null;
  /** Only this connection receives messages here. */
  readonly address: string;
}

/** Messages are missing at this place. */
export class Gap {
  private constructor();
  /** 0 if the number is unknown. */
  readonly count: number;
  /** Who discarded them: the bus, or this client because the program read too slowly. */
  readonly where: 'bus' | 'client';
}

/** Queued messages were replaced by newer ones with the same keys. */
export class Replaced {
  private constructor();
  readonly count: number;
}

/** The client has connected again. Messages between are missing: those before it came before, and those after it come after. */
export class Reconnected {}

export class Response {
  private constructor();
  readonly data: Buffer;
  /** The service, as the bus verifies it. */
  readonly callee: Sender;
  text(): string;
  json(): any;
}

export class Request {
  private constructor();
  readonly command: string;
  readonly data: Buffer;
  /** The caller, as the bus verifies it. */
  readonly caller: Sender;
  /** The W3C traceparent that the caller gave, or ''. It proves nothing. */
  readonly context: string;
  /** Aborted when the caller cancels the request or disconnects; the reason is a Cancelled. Callers get no response then. */
  readonly signal: AbortSignal;
  text(): string;
  json(): any;
}

export type Result = Bytes | void | null;

/** A response in parts. A part is taken from it when the caller accepts one; `return()` is called when the caller wants no more. */
export type Parts = AsyncIterable<Result> | Generator<Result | Promise<Result>, unknown, unknown>;

/** Returns the response, or its parts. The message of a ServiceError is sent to the caller; of any other exception only its type. */
export type Handler = (request: Request) => Result | Parts | Promise<Result | Parts>;

export class Service {
  private constructor();
  readonly command: string;
  readonly group: string | null;
  /** Unsubscribe, end the streams with an error, and wait until the requests that have arrived are answered. */
  stop(): Promise<void>;
}

export class SbusError extends Error {
  constructor(message: string, code: string);
  readonly code: string;
}
/** The client cannot connect to a bus at the address. */
export class NoBus extends SbusError {}
/** The connection has ended. */
export class Disconnected extends SbusError {
  constructor(reason: string, code?: string);
}
/** The bus has refused a packet. */
export class Refused extends SbusError {
  constructor(what: string, code: string, text: string);
  readonly text: string;
}
/** The bus has not answered in time. */
export class TimedOut extends SbusError {
  constructor(what: string, milliseconds: number);
}
/** A call that has no result. */
export class CallError extends SbusError {
  constructor(command: string, message: string, code: string);
  readonly command: string;
}
/** No service runs the command. If sbus-trigger was to start one, `reason` says why that failed, else it is empty. */
export class NoRecipient extends CallError {
  constructor(command: string, reason?: string);
  readonly reason: string;
}
/** All services that got the request have disconnected. */
export class PeerDisconnected extends CallError {
  constructor(command: string);
}
/** The service has answered with an error. */
export class RemoteError extends CallError {
  constructor(command: string, text: string, callee: Sender);
  readonly text: string;
  readonly callee: Sender;
}
/** No response came in time. The request may have been run, unless `isSent` is false: there was no connection, or no answer of the bus. */
export class CallTimeout extends CallError {
  constructor(command: string, milliseconds: number, isSent?: boolean);
  readonly isSent: boolean;
}
/** The bus has discarded messages to this client, and parts of the response may be among them. The request may have been run. */
export class AnswerLost extends CallError {
  constructor(command: string, part: number);
}
/** Why the `signal` of a request is aborted. */
export class Cancelled extends SbusError {
  constructor(reason: string);
}
/** Thrown by a handler of a service: its message is sent to the caller. */
export class ServiceError extends SbusError {
  constructor(message: string);
}

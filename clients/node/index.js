/** A client for sbusd, a message bus for Linux machines. See README.md. */

export { connect, Bus } from './lib/bus.js';
export { Response } from './lib/pending_call.js';
export {
  AnswerLost, CallError, CallTimeout, Cancelled, Disconnected, NoBus, NoRecipient, PeerDisconnected, Refused, RemoteError, SbusError,
  ServiceError, TimedOut,
} from './lib/errors.js';
export { Gap, Message, Reconnected, Replaced, Sender } from './lib/items.js';
export { Request, Service } from './lib/services.js';
export { Subscription } from './lib/subscription.js';

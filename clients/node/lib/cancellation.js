/** Whether the caller of a request has cancelled it or has disconnected. Spec: sbus-rpc(7) §7, "Cancellation". */

export class Cancellation {
  /** Called once, when it becomes true. */
  onSet = null;
  #controller = null; // made for handlers that ask for the signal
  #reason = null;

  get isSet() {
    return this.#reason !== null;
  }

  /** An AbortSignal for the handler. */
  get signal() {
    if (this.#controller === null) {
      this.#controller = new AbortController();
      if (this.#reason !== null) {
        this.#controller.abort(this.#reason);
      }
    }
    return this.#controller.signal;
  }

  /** Note that the request is cancelled; harmless when that is known. */
  set(reason) {
    if (this.#reason === null) {
      this.#reason = reason;
      this.#controller?.abort(reason);
      this.onSet?.();
    }
  }

  /** Return whether a handler has failed only because its request is cancelled. */
  explains(error) {
    return this.#reason !== null && (error === this.#reason || error?.name === 'AbortError');
  }
}

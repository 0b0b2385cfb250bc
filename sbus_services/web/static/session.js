// The session with the gateway: sends requests, returns their responses, and connects again. Spec: sbus-web(8), "FRAMES".

const FIRST_DELAY = 500;
const LAST_DELAY = 5000;
const KEY_NAME = "sbus-web-key";

// Take the key of a new login out of the URL, so that neither the history nor a bookmark has it.
export function takeKey() {
  const match = /^#key=([\w-]+)$/.exec(location.hash);
  if (match) {
    localStorage.setItem(KEY_NAME, match[1]);
    history.replaceState(null, "", location.pathname);
  }
}

// Events: "state" with the state of the connection in `detail`, and "frame" with each frame that is not a response.
export class Session extends EventTarget {
  #socket = null;
  #number = 0;
  #waiting = new Map();
  #delay = FIRST_DELAY;

  connect() {
    const socket = new WebSocket(`ws://${location.host}/session`, ["sbus-web", `key.${localStorage.getItem(KEY_NAME) ?? "none"}`]);
    let isOpen = false;
    this.#socket = socket;
    socket.addEventListener("open", () => {
      isOpen = true;
    });
    socket.addEventListener("message", (event) => {
      this.#delay = FIRST_DELAY;
      this.#receive(JSON.parse(event.data));
    });
    socket.addEventListener("close", (event) => this.#closed(event, isOpen));
  }

  // Return a promise of the response; it is rejected with an Error if the request fails.
  request(type, members = {}) {
    if (this.#socket === null || this.#socket.readyState !== WebSocket.OPEN) return Promise.reject(new Error("not connected"));
    const id = ++this.#number;
    return new Promise((resolve, reject) => {
      this.#waiting.set(id, { resolve, reject });
      this.#socket.send(JSON.stringify({ type, id, ...members }));
    });
  }

  #receive(frame) {
    const waiting = this.#waiting.get(frame.id);
    if (waiting === undefined) {
      this.dispatchEvent(new CustomEvent("frame", { detail: frame }));
      return;
    }
    this.#waiting.delete(frame.id);
    if (frame.type === "error") waiting.reject(new Error(frame.error));
    else waiting.resolve(frame);
  }

  async #closed(event, wasOpen) {
    this.#socket = null;
    for (const { reject } of this.#waiting.values()) reject(new Error("the connection to the gateway was lost"));
    this.#waiting.clear();
    const delay = this.#delay;
    this.#delay = Math.min(LAST_DELAY, 2 * delay);
    // A page cannot see why a WebSocket was refused.
    if (!wasOpen && (await isLoggedOut())) {
      this.#state("closed", "This login has ended. Open a new link of sbus-web.");
      return;
    }
    this.#state("reconnecting", event.reason);
    setTimeout(() => this.connect(), delay);
  }

  #state(state, reason) {
    this.dispatchEvent(new CustomEvent("state", { detail: { state, reason } }));
  }
}

async function isLoggedOut() {
  try {
    return (await fetch("/", { method: "HEAD" })).status === 401;
  } catch {
    return false; // the gateway does not run: it may come back
  }
}

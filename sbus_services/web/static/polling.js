// Views that ask again at an interval, while they are shown and the page is visible.

const INTERVAL = 2000;

export class Polling {
  #ask;
  #panel;
  #isBusy = false;

  constructor(panel, ask) {
    this.#ask = ask;
    this.#panel = panel;
    setInterval(() => this.now(), INTERVAL);
    document.addEventListener("visibilitychange", () => this.now());
  }

  async now() {
    if (this.#isBusy || this.#panel.hidden || document.hidden) return;
    this.#isBusy = true;
    try {
      await this.#ask();
    } catch {
      // The state of the connection is shown at the top; the last answer stays in sight.
    } finally {
      this.#isBusy = false;
    }
  }
}

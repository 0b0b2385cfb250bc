// Tabs as the ARIA Authoring Practices describe them: arrow keys, Home and End move between them.

export class Tabs {
  #tabs = [...document.querySelectorAll("[role=tab]")];
  #chosen;

  constructor(chosen) {
    this.#chosen = chosen;
    for (const tab of this.#tabs) {
      tab.addEventListener("click", () => this.choose(tab));
      tab.addEventListener("keydown", (event) => this.#move(event));
    }
  }

  choose(tab) {
    for (const each of this.#tabs) {
      const isChosen = each === tab;
      each.setAttribute("aria-selected", String(isChosen));
      each.tabIndex = isChosen ? 0 : -1;
      document.getElementById(each.getAttribute("aria-controls")).hidden = !isChosen;
    }
    this.#chosen(tab.getAttribute("aria-controls"));
  }

  #move(event) {
    const here = this.#tabs.indexOf(event.currentTarget);
    const last = this.#tabs.length - 1;
    const there = { ArrowRight: here === last ? 0 : here + 1, ArrowLeft: here === 0 ? last : here - 1, Home: 0, End: last }[event.key];
    if (there === undefined) return;
    event.preventDefault();
    this.#tabs[there].focus();
    this.choose(this.#tabs[there]);
  }
}

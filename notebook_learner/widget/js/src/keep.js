// What a browser keeps of a person's choices: which sections are folded, which metrics are pinned or hidden.

const PREFIX = "notebook_learner ";
const here = new Map(); // of a frame without storage of its own, until the page is closed

/** What was kept under a name; `fallback` if nothing of its kind was. */
export function kept(name, fallback) {
  try {
    const found = JSON.parse(localStorage.getItem(PREFIX + name));
    return typeof found === typeof fallback && Array.isArray(found) === Array.isArray(fallback) ? (found ?? fallback) : fallback;
  } catch {
    return here.get(name) ?? fallback;
  }
}

export function keep(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    here.set(name, value);
  }
}

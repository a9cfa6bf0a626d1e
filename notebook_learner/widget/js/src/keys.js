// Which keys are the panel's. All others go on to the notebook around it.

/** Whether the notebook gets a key that was pressed inside of the panel: Ctrl+S saves wherever the focus is. A
 * plain key stays: a digit that misses its field would make a heading of the cell that trains. */
export const passes = ({ key, ctrlKey, metaKey, altKey, shiftKey }) =>
  ctrlKey || metaKey || altKey || key === "Escape" || (shiftKey && key === "Enter") || /^(F\d+|Control|Meta|Alt)$/.test(key);

// JupyterLab looks for these before the panel hears of a key.
const SUPPRESS = ["data-lm-suppress-shortcuts", "data-p-suppress-shortcuts"];

/** Keep the keys that are pressed in the controls of `panel`, and only those. */
export function keepKeys(panel, signal) {
  const decide = (event) => {
    const here = event.composedPath().includes(panel);
    for (const name of SUPPRESS) panel.toggleAttribute(name, here && !passes(event));
  };
  window.addEventListener("keydown", decide, { capture: true, signal });
  panel.addEventListener("keydown", (event) => passes(event) || event.stopPropagation(), { signal });
}

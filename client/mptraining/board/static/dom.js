// Elements without HTML text: what comes from a run is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

/** Return an HTML element. `on…` adds a listener, `style` sets properties, true is an empty attribute, null is none. */
export function h(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Return an SVG element; see `h`. */
export function s(tag, properties = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, each] of Object.entries(value)) element.style.setProperty(key, each);
    else if (name === "value" || name === "checked" || name === "indeterminate") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false));
  return element;
}

/** Tell a screen reader about a change that is only seen. */
export function announce(text) {
  document.getElementById("announcements").textContent = text;
}

/** Call `action` after the last of several calls, `milliseconds` later. */
export function debounced(action, milliseconds) {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

/** Call `action` once, `milliseconds` after the first of several calls: changes without a pause do not put it off. */
export function throttled(action, milliseconds) {
  let timer = 0;
  let last = null;
  const run = async () => {
    timer = 0;
    try {
      await action(last);
    } catch (error) {
      // That the server does not answer is told by the connection; anything else is a fault of the page.
      if (error.status === undefined) throw error;
    }
  };
  return (given) => {
    last = given;
    timer ||= setTimeout(run, milliseconds);
  };
}

/** Return a button that copies `text`. */
export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "quiet", "aria-label": `${label}: ${text}`, onclick: copy }, label);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      // Without the permission the text is selected, so that Ctrl-C takes it.
      getSelection().selectAllChildren(button.parentElement.querySelector("code"));
      button.textContent = "Press Ctrl-C";
    }
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}

/** Return a paragraph for a view without content: what is missing and what to do. */
export function emptyState(title, ...advice) {
  return h("div", { class: "empty" }, h("h2", {}, title), ...advice.map((each) => h("p", {}, each)));
}

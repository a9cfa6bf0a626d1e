// The panel of a Learner, as an anywidget module: one store a model, any number of views.

import { Store } from "./store.js";
import { View } from "./view.js";

// A factory, because the objects that `initialize` and `render` are given differ even for one model.
export default () => {
  let store = null;
  const open = (model) => {
    store = new Store(model);
    store.open();
    return store;
  };
  return {
    initialize({ model }) {
      const mine = open(model);
      return () => {
        mine.close();
        if (store === mine) store = null;
      };
    },
    render({ model, el }) {
      const view = new View(store ?? open(model), el);
      return () => view.close();
    },
  };
};

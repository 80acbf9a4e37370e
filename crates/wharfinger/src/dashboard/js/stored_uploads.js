// Stores unfinished uploads with their bytes in IndexedDB, so that a reload, a browser crash or a closed tab does not lose
// them. Without IndexedDB nothing is stored, and uploads work until the tab is closed.

const NAME = "wharfinger-uploads";

let opened = null;

function open() {
  opened ??= new Promise((resolve) => {
    try {
      const request = indexedDB.open(NAME, 1);
      request.onupgradeneeded = () => request.result.createObjectStore("items", { keyPath: "key" });
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => resolve(null);
      request.onblocked = () => resolve(null);
    } catch {
      resolve(null);
    }
  });
  return opened;
}

async function transact(mode, action) {
  const database = await open();
  if (!database) return undefined;
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("items", mode);
    const request = action(transaction.objectStore("items"));
    transaction.oncomplete = () => resolve(request?.result);
    transaction.onabort = transaction.onerror = () => reject(transaction.error ?? request?.error);
  });
}

export const put = (record) => transact("readwrite", (items) => items.put(record)).catch(() => undefined);
export const remove = (key) => transact("readwrite", (items) => items.delete(key)).catch(() => undefined);
export const find = (key) => transact("readonly", (items) => items.get(key)).catch(() => undefined);
export const all = () => transact("readonly", (items) => items.getAll()).then((found) => found ?? [], () => []);

/** Changes a stored record. Does nothing if the record was removed meanwhile: copying a large file takes time. */
export const change = (key, changes) => transact("readwrite", (items) => {
  const request = items.get(key);
  request.onsuccess = () => request.result && items.put({ ...request.result, ...changes });
}).catch(() => undefined);

/** Whether the bytes can still be read: the browser may have dropped them, or the user has moved the file. */
export async function isReadable(file) {
  if (!(file instanceof Blob)) return false;
  try {
    await file.slice(0, Math.min(1, file.size)).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

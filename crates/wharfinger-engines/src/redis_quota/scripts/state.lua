-- The common prefix of all scripts. The keys of a tenant, all in one hash slot:
local USED, LIMIT, LOADED, INFLIGHT, REFUNDED, LOADING = unpack(KEYS)

-- Identifies who wrote the counters. `run_id` changes with each restart. `master_replid` changes with each failover, also
-- when a former primary becomes primary again. ARGV[1] is the id of the catalog.
local function writer_id()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ' ' ..
    string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') .. ' ' .. ARGV[1]
end

-- The epoch of the loaded counters, or nil if they are invalid. A missing key never counts as zero: it was flushed or
-- evicted.
local function loaded_epoch()
  if redis.call('EXISTS', USED, LIMIT, LOADED, INFLIGHT, REFUNDED) < 5 then return nil end
  local epoch, at = unpack(redis.call('HMGET', LOADED, 'epoch', 'at'))
  if not epoch or at ~= writer_id() then return nil end
  return epoch
end

-- Compares whole numbers as texts, because Lua numbers are exact only up to 2^53.
local function at_most(one, other)
  return #one < #other or (#one == #other and one <= other)
end

-- What all scripts begin with. The keys of a tenant, all in one hash slot:
local USED, LIMIT, LOADED, INFLIGHT, REFUNDED, LOADING = unpack(KEYS)

-- Whose counters: this server process, which is another after a restart; its reign, which is another after each
-- failover, also where the process is the old one that was a replica in between; and the catalog that asks.
local function here()
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ' ' ..
    string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)') .. ' ' .. ARGV[1]
end

-- The epoch that these counters were loaded under; nothing if they cannot be counted on. A key that is missing is
-- never a zero: somebody flushed it, or it was evicted.
local function loaded_epoch()
  if redis.call('EXISTS', USED, LIMIT, LOADED, INFLIGHT, REFUNDED) < 5 then return nil end
  local epoch, at = unpack(redis.call('HMGET', LOADED, 'epoch', 'at'))
  if not epoch or at ~= here() then return nil end
  return epoch
end

-- Whole numbers as texts: those of Lua are exact up to 2^53 only.
local function at_most(one, other)
  return #one < #other or (#one == #other and one <= other)
end

-- Loads the counters of the catalog with their epoch.
local name, epoch, used, limit, own_limit = unpack(ARGV, 2)
local at = writer_id()
if redis.call('HGET', LOADING, name) ~= at then return {'unannounced'} end
local held = loaded_epoch()
if held and tonumber(held) >= tonumber(epoch) then
  redis.call('HDEL', LOADING, name)
  return {'newer', held}
end
local before = held and redis.call('GET', USED) or ''
redis.call('DEL', USED, LIMIT, LOADED, INFLIGHT, REFUNDED)
redis.call('SET', USED, used)
redis.call('SET', LIMIT, limit)
redis.call('HSET', LOADED, 'epoch', epoch, 'at', at, 'own_limit', own_limit)
-- Redis has no empty collections. The placeholder entries distinguish an empty collection from a lost key.
redis.call('HSET', INFLIGHT, '', '0')
redis.call('SADD', REFUNDED, '')
redis.call('HDEL', LOADING, name)
return {'loaded', before}

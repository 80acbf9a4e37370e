-- Reserves the size of a file if it fits. An id is counted once, even if the call is repeated. Each attempt has its own id.
local id, size, default_limit = unpack(ARGV, 2)
local epoch = loaded_epoch()
if not epoch then return {'reload'} end
local limit = redis.call('GET', LIMIT)
if limit ~= default_limit and redis.call('HGET', LOADED, 'own_limit') == '0' then
  limit = default_limit
  redis.call('SET', LIMIT, limit)
end
if redis.call('HEXISTS', INFLIGHT, id) == 1 then return {'counted', epoch, limit} end
redis.call('INCRBY', USED, size)
local used = redis.call('GET', USED)
if at_most(used, limit) then
  redis.call('HSET', INFLIGHT, id, size)
  return {'counted', epoch, limit}
end
redis.call('DECRBY', USED, size)
return {'full', redis.call('GET', USED), limit}

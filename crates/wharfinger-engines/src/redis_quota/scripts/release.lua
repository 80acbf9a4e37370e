-- Takes back what was counted for a try that, for certain, came to nothing.
local id = ARGV[2]
if not loaded_epoch() then return {'reload'} end
local size = redis.call('HGET', INFLIGHT, id)
if size then
  redis.call('HDEL', INFLIGHT, id)
  redis.call('DECRBY', USED, size)
end
return {'done'}

-- Runs every command of the other scripts on the keys of a test tenant. It finds missing permissions and read-only
-- servers.
redis.call('SET', USED, '1')
redis.call('INCRBY', USED, '2')
redis.call('DECRBY', USED, '1')
redis.call('SET', LIMIT, '1')
redis.call('HSET', LOADED, 'epoch', '0', 'at', writer_id(), 'own_limit', '0')
redis.call('HSET', INFLIGHT, '', '0')
redis.call('HEXISTS', INFLIGHT, '')
redis.call('SADD', REFUNDED, '')
redis.call('SCARD', REFUNDED)
redis.call('HSET', LOADING, table.concat(redis.call('TIME'), '.'), '')
redis.call('EXPIRE', LOADING, '1')
redis.call('HGET', LOADING, '')
redis.call('HDEL', LOADING, '')
local counts = loaded_epoch() == '0' and at_most(redis.call('GET', USED), '2')
redis.call('DEL', USED, LIMIT, LOADED, INFLIGHT, REFUNDED, LOADING)
return {counts and 'usable' or 'unusable'}

-- Removes attempts whose files are in the catalog from the list in flight. Their bytes stay counted.
for n = 2, #ARGV do redis.call('HDEL', INFLIGHT, ARGV[n]) end
return {'done'}

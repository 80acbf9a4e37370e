//! The operations of S3 that the program uses. All others are not implemented.

use s3s::dto::*;
use s3s::{S3, S3Request, S3Response, S3Result};

use crate::bucket::Buckets;

macro_rules! operations {
    ($($name:ident($input:ident) -> $output:ident = |$buckets:ident, $with:ident| $result:expr;)+) => {
        #[async_trait::async_trait]
        impl S3 for Buckets {
            $(
                async fn $name(&self, request: S3Request<$input>) -> S3Result<S3Response<$output>> {
                    let ($buckets, $with) = (self, request.input);
                    Ok(S3Response::new($result?))
                }
            )+
        }
    };
}

operations! {
    put_object(PutObjectInput) -> PutObjectOutput = |buckets, input| buckets.put(input).await;
    head_object(HeadObjectInput) -> HeadObjectOutput = |buckets, input| buckets.head(&input);
    get_object(GetObjectInput) -> GetObjectOutput = |buckets, input| buckets.get(&input);
    delete_object(DeleteObjectInput) -> DeleteObjectOutput = |buckets, input| buckets.delete(&input);
    delete_objects(DeleteObjectsInput) -> DeleteObjectsOutput = |buckets, input| buckets.delete_many(input);
    list_objects_v2(ListObjectsV2Input) -> ListObjectsV2Output = |buckets, input| buckets.list(input);
    get_bucket_versioning(GetBucketVersioningInput) -> GetBucketVersioningOutput = |buckets, input| {
        buckets.with(&input.bucket, |_| GetBucketVersioningOutput::default())
    };
    create_multipart_upload(CreateMultipartUploadInput) -> CreateMultipartUploadOutput =
        |buckets, input| buckets.create_upload(input);
    upload_part(UploadPartInput) -> UploadPartOutput = |buckets, input| buckets.put_part(input).await;
    list_parts(ListPartsInput) -> ListPartsOutput = |buckets, input| buckets.list_parts(input);
    complete_multipart_upload(CompleteMultipartUploadInput) -> CompleteMultipartUploadOutput =
        |buckets, input| buckets.complete_upload(input);
    abort_multipart_upload(AbortMultipartUploadInput) -> AbortMultipartUploadOutput =
        |buckets, input| buckets.abort_upload(&input);
    list_multipart_uploads(ListMultipartUploadsInput) -> ListMultipartUploadsOutput =
        |buckets, input| buckets.list_uploads(input);
}

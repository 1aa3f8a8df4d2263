//! Which package a module comes in, for the modules people import most. A name that is not here is never guessed: it may be mistyped, and
//! somebody may have registered the mistyped one.

/// Modules whose package has another name. A dotted module is in a package of its own.
const OTHERWISE: &[(&str, &str)] = &[
    ("Crypto", "pycryptodome"),
    ("IPython", "ipython"),
    ("Levenshtein", "levenshtein"),
    ("MySQLdb", "mysqlclient"),
    ("OpenSSL", "pyopenssl"),
    ("PIL", "pillow"),
    ("PyQt5", "pyqt5"),
    ("PyQt6", "pyqt6"),
    ("PySide6", "pyside6"),
    ("attr", "attrs"),
    ("bs4", "beautifulsoup4"),
    ("cv2", "opencv-python"),
    ("dash_bootstrap_components", "dash-bootstrap-components"),
    ("dateutil", "python-dateutil"),
    ("discord", "discord.py"),
    ("dns", "dnspython"),
    ("docx", "python-docx"),
    ("dotenv", "python-dotenv"),
    ("faiss", "faiss-cpu"),
    ("fitz", "pymupdf"),
    ("flask_cors", "flask-cors"),
    ("flask_sqlalchemy", "flask-sqlalchemy"),
    ("fpdf", "fpdf2"),
    ("git", "gitpython"),
    ("google.cloud.bigquery", "google-cloud-bigquery"),
    ("google.cloud.storage", "google-cloud-storage"),
    ("google.genai", "google-genai"),
    ("google.protobuf", "protobuf"),
    ("googleapiclient", "google-api-python-client"),
    ("grpc", "grpcio"),
    ("imblearn", "imbalanced-learn"),
    ("jose", "python-jose"),
    ("jwt", "pyjwt"),
    ("kafka", "kafka-python"),
    ("langchain_community", "langchain-community"),
    ("langchain_core", "langchain-core"),
    ("langchain_openai", "langchain-openai"),
    ("magic", "python-magic"),
    ("mpl_toolkits", "matplotlib"),
    ("mysql", "mysql-connector-python"),
    ("nacl", "pynacl"),
    ("pkg_resources", "setuptools"),
    ("pptx", "python-pptx"),
    ("prometheus_client", "prometheus-client"),
    ("psycopg2", "psycopg2-binary"),
    ("pydantic_settings", "pydantic-settings"),
    ("pylab", "matplotlib"),
    ("pywt", "pywavelets"),
    ("rest_framework", "djangorestframework"),
    ("ruamel.yaml", "ruamel.yaml"),
    ("sentence_transformers", "sentence-transformers"),
    ("serial", "pyserial"),
    ("skimage", "scikit-image"),
    ("sklearn", "scikit-learn"),
    ("skopt", "scikit-optimize"),
    ("slugify", "python-slugify"),
    ("socks", "pysocks"),
    ("telegram", "python-telegram-bot"),
    ("tensorflow_datasets", "tensorflow-datasets"),
    ("tensorflow_hub", "tensorflow-hub"),
    ("umap", "umap-learn"),
    ("usb", "pyusb"),
    ("websocket", "websocket-client"),
    ("yaml", "pyyaml"),
    ("zmq", "pyzmq"),
];

/// Modules whose package is called the same.
const SAME: &str = "accelerate aiofiles aiohttp aiosqlite alembic altair anthropic anyio arrow asyncpg attrs babel bcrypt black \
    bokeh boto3 botocore bottleneck cachetools cairosvg catboost celery certifi cffi chardet chromadb click \
    cloudpickle colorama coverage cryptography cvxpy cython dash dask datasets deepdiff diskcache distributed \
    django docker docx2txt duckdb einops elasticsearch emoji evaluate faker fastapi fastparquet feedparser \
    filelock fiona flask folium fsspec ftfy gensim geopandas geopy gradio greenlet gunicorn gymnasium h5py \
    httpcore httpx huggingface_hub humanize hypothesis igraph imageio ipywidgets isodate jax jaxlib jinja2 \
    jmespath joblib jsonschema keras langchain librosa lightgbm lightning llvmlite loguru lxml markdown markupsafe \
    marshmallow matplotlib mlflow mpmath msgpack mypy natsort nbformat netCDF4 networkx nltk numba numexpr numpy \
    openai openpyxl optuna orjson packaging pandas paramiko patsy peewee pendulum pexpect plotly polars prophet \
    psutil psycopg pyarrow pycparser pydantic pydot pygame pygments pymongo pymupdf pymysql pyparsing pypdf pyproj \
    pytesseract pytest pytz rapidfuzz rasterio ray redis regex reportlab requests rich s3fs sanic scapy scipy \
    scrapy seaborn selenium sentencepiece setuptools shap shapely simplejson six soundfile spacy sqlalchemy \
    sqlmodel starlette statsmodels streamlit sympy tabulate tenacity tensorboard tensorflow termcolor textblob \
    tiktoken timm tokenizers toml tomli toolz torch torchaudio torchvision tornado tqdm transformers trio typer \
    typing_extensions tzdata ujson urllib3 uvicorn wandb wordcloud wrapt xarray xgboost xlrd xlsxwriter xmltodict \
    yfinance zarr zstandard";

/// The package that this module comes in, if it is one of the usual ones.
pub fn package_of(module: &str) -> Option<&'static str> {
    let prefixes = std::iter::successors(Some(module), |name| name.rsplit_once('.').map(|(above, _)| above));
    prefixes.into_iter().find_map(|name| {
        let otherwise = OTHERWISE.iter().find(|(known, _)| *known == name).map(|(_, package)| *package);
        otherwise.or_else(|| SAME.split(' ').find(|known| *known == name))
    })
}

/// The packages that these missing modules come in, each once, without those nobody knows.
pub fn packages_of(missing: &[String]) -> Vec<&'static str> {
    let mut packages = Vec::new();
    for package in missing.iter().filter_map(|module| package_of(module)) {
        if !packages.contains(&package) {
            packages.push(package);
        }
    }
    packages
}

/// Whether a dotted module is in a package of its own.
pub fn has_own_package(module: &str) -> bool {
    OTHERWISE.iter().any(|(known, _)| *known == module)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Requirement;

    #[test]
    fn the_tables_are_in_order_and_hold_names_that_can_be_installed() {
        assert!(OTHERWISE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let same: Vec<&str> = SAME.split(' ').collect();
        assert!(same.windows(2).all(|pair| pair[0] < pair[1]));
        for package in OTHERWISE.iter().map(|(_, package)| *package).chain(same.iter().copied()) {
            Requirement::parse(package).unwrap();
        }
        assert!(same.iter().all(|name| !OTHERWISE.iter().any(|(module, _)| module == name)));
    }

    #[test]
    fn modules_lead_to_packages_and_unknown_ones_to_none() {
        assert_eq!(package_of("cv2"), Some("opencv-python"));
        assert_eq!(package_of("PIL.Image"), Some("pillow"));
        assert_eq!(package_of("google.protobuf.message"), Some("protobuf"));
        assert_eq!(package_of("google"), None);
        assert_eq!(package_of("numpi"), None);
        let missing = ["sklearn.svm", "numpy", "sklearn", "numpi"].map(str::to_owned);
        assert_eq!(packages_of(&missing), ["scikit-learn", "numpy"]);
    }
}
